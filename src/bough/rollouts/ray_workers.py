"""A process of the cluster that plays episodes: an environment, who plays in it, and the event loop that it runs on.

A `Worker` does not depend on Ray. What it is made from travels as bytes and is read in `start`, so
that a node on which something is missing can say what.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from bough import bit_exact
from bough.config.groups import AgentConfig, ClusterConfig, CollectConfig, LimitsConfig, SamplingConfig
from bough.engines.base import EngineError
from bough.environments.base import Environment, EnvironmentFailedError
from bough.environments.isolated import shut_down
from bough.errors import OURS, PACKAGES, STANDARD_LIBRARY, BoughError, InputError, exception_line
from bough.rollouts.agents import Agent, ExpertAgent, RandomAgent, make_agent
from bough.rollouts.ray import ClusterLostError, Plan, connected, held_gpu, import_ray, make_plan, nodes
from bough.rollouts.ray_pool import Place, WorkerLostError, WorkerPool
from bough.rollouts.runner import Attempt, Images, LocalRunner
from bough.terminal import console
from bough.types import Trajectory

# The errors that a caller may meet, by the word that travels instead of them: not every error can be pickled.
ERRORS: dict[str, type[BoughError]] = {
    "environment": EnvironmentFailedError,
    "engine": EngineError,
    "input": InputError,
    "other": BoughError,
}


class Agents(Protocol):
    """Who plays in a worker."""

    def playing(self, attempt: Attempt) -> AbstractAsyncContextManager[Agent]:
        """Who plays this attempt. Within the context it has the weights that the attempt needs."""

    async def renew(self, name: str, weights: Any) -> None:
        """Plays with these weights from now on."""

    async def close(self) -> None:
        """Releases everything."""


class AgentsFactory(Protocol):
    """Makes the agents of a worker, in the worker. It is pickled."""

    async def __call__(self) -> Agents: ...


@dataclass(frozen=True)
class OneAgent:
    """One agent plays all attempts, always with the same weights."""

    agent: Agent

    def playing(self, attempt: Attempt) -> AbstractAsyncContextManager[Agent]:  # noqa: ARG002
        return nullcontext(self.agent)

    async def renew(self, name: str, weights: Any) -> None:  # noqa: ARG002
        raise AssertionError(f"{self.agent.name} has no other weights")

    async def close(self) -> None:
        await self.agent.close()


@dataclass(frozen=True)
class ConfiguredAgent:
    """Makes the agent that the settings name."""

    config: AgentConfig
    sampling: SamplingConfig

    async def __call__(self) -> Agents:
        return OneAgent(await make_agent(self.config, self.sampling))


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is made from."""

    environment_class: type[Environment]
    make_agents: AgentsFactory
    limits: LimitsConfig


@dataclass(frozen=True)
class Surroundings:
    """What the process of a worker shares with the driver's: relative paths, the rounding of numbers, API keys.

    `gpus` is what the worker has of the GPUs of its node; with 0 it sees none.
    """

    folder: str = field(default_factory=os.getcwd)
    version: str = field(default_factory=lambda: version("bough"))
    variables: Mapping[str, str] = field(default_factory=dict)
    gpus: float = 0.0

    @classmethod
    def here(cls, *, variables: tuple[str, ...] = (), gpus: float = 0.0) -> Surroundings:
        """Those of this process, with these variables where they are set."""
        names = (bit_exact.VARIABLE, *variables)
        return cls(variables={name: os.environ[name] for name in names if name in os.environ}, gpus=gpus)

    def enter(self) -> None:
        """Makes this process like the driver's. InputError where it cannot be."""
        if self.version != (here := version("bough")):
            raise InputError(f"it has Bough {here}, and the driver has {self.version}; install the same version")
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        os.environ.update(self.variables)
        os.environ["OMP_NUM_THREADS"] = "1"  # workers share the cores, and one thread rounds alike everywhere
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        if not self.gpus:
            hide_gpus()
        elif self.gpus < 1:
            import torch

            if torch.cuda.is_available():
                torch.cuda.set_per_process_memory_fraction(self.gpus)


def refusal(error: Exception) -> str:
    """Why a worker cannot start, such as a module that is not installed there or a GPU without memory."""
    return str(error) if isinstance(error, BoughError) else exception_line(error)


def hide_gpus() -> None:
    """This process and those that it starts see no GPU. Ray shows all of them to a process that has none."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


@dataclass(frozen=True)
class Outcome:
    """The result of an attempt: its record and images, or the class and text of an error."""

    record: Trajectory | None = None
    images: Images = field(default_factory=list)
    error: str = ""
    text: str = ""

    @classmethod
    def of_error(cls, error: BoughError) -> Outcome:
        kinds = (kind for kind, error_class in ERRORS.items() if isinstance(error, error_class))
        return cls(error=next(kinds), text=str(error))

    def result(self) -> tuple[Trajectory, Images]:
        """The record and the images. Raises the error if there was one."""
        if self.record is None:
            raise ERRORS[self.error](self.text)
        return self.record, self.images


class Worker:
    """Plays attempts, several at the same time, until it is closed."""

    def __init__(self, packed: bytes, surroundings: Surroundings | None = None) -> None:
        self._packed, self._surroundings = packed, surroundings
        self._spec: WorkerSpec | None = None
        self._agents: Agents | None = None

    async def start(self) -> str | None:
        """Gets ready to play; returns why it cannot play here, None if it can."""
        try:
            if self._surroundings is not None:
                self._surroundings.enter()
            self._spec = spec = pickle.loads(self._packed)  # noqa: S301  what the driver has packed
            if lacks := spec.environment_class.lacks():
                return str(lacks)
            self._agents = await spec.make_agents()
        except Exception as error:
            return refusal(error)
        return None

    async def play(self, attempt: Attempt, episode: str | None = None) -> Outcome:
        """Plays one attempt. Only what is a defect of the code raises."""
        assert self._spec is not None and self._agents is not None
        try:
            async with self._agents.playing(attempt) as agent:
                runner = LocalRunner.of(self._spec.environment_class, agent, self._spec.limits)
                return Outcome(*await runner.play(attempt, episode=episode))
        except BoughError as error:
            return Outcome.of_error(error)

    async def renew(self, name: str, weights: Any) -> None:
        """Plays with these weights from now on; records call them `name`."""
        assert self._agents is not None
        await self._agents.renew(name, weights)

    async def close(self) -> None:
        """Releases the agent, and what the environment's episodes share."""
        if self._agents is not None:
            await self._agents.close()
        if self._spec is not None:
            await shut_down(self._spec.environment_class)


# What workers are made from, as bytes: also classes that no other machine could import.


def pack(spec: WorkerSpec) -> bytes:
    """The bytes that `Worker` reads. InputError where something in it cannot be sent to another process.

    Installed packages are named, and the nodes must have them. The user's own modules travel themselves: that of
    the environment or agent function, and those in the same folder.
    """
    name = spec.environment_class.name or spec.environment_class.__name__
    return pack_code(spec, [spec.environment_class], name)


def pack_code(thing: Any, code: Iterable[Any], name: str) -> bytes:
    """The bytes of `thing` with the user's modules that the classes and functions `code` need; `name` is for errors."""
    import_ray()
    from ray import cloudpickle

    with _by_value(cloudpickle, _own_modules(code)):
        try:
            packed: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
        except Exception as error:  # whatever the user's objects raise
            raise InputError(
                f"{name} cannot be sent to the workers of a cluster ({exception_line(error)}); keep what cannot be "
                "pickled, such as connections and locks, out of its module and create it in __init__ or start"
            ) from error
    return packed


@contextmanager
def _by_value(cloudpickle: Any, modules: list[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules(code: Iterable[Any]) -> list[ModuleType]:
    """The user's modules that classes and functions need. Cloudpickle itself takes care of `__main__`."""
    names = {
        getattr(part, "__module__", None)
        for one in code
        for part in (*getattr(one, "__mro__", (one,)), getattr(one, "function", None))  # of an agent function's class
    }
    own = [module for name in names if name and (module := sys.modules.get(name)) is not None and _is_own(module)]
    folders = {_file(module).parent for module in own}
    beside = [module for module in list(sys.modules.values()) if _is_own(module) and _file(module).parent in folders]
    return [module for module in beside if module.__name__ != "__main__"]


def _is_own(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and not str(Path(str(file)).resolve()).startswith((OURS, STANDARD_LIBRARY, *PACKAGES))


def _file(module: ModuleType) -> Path:
    return Path(str(module.__file__)).resolve()


# Functions that run on the nodes of a cluster, each call in a worker process there.
# A call whose worker or node is lost is made again elsewhere. An error that the function raises is raised here. Calls
# are cancelled by killing their workers, so what a function starts must end with its process.

# Losses of one call after which it fails: it may be the reason for them, for example by its memory.
MAX_LOSSES = 5
TASK_POLL_S, SAY_EVERY_S = 1.0, 30.0
# Time for workers to end after their calls were cancelled.
STOP_S = 20.0

Notify = Callable[[str], None]


class WorkLostError(BoughError):
    """The worker of a call was lost each time it was made."""


class Tasks:
    """Calls functions on the nodes, with the resources of the plan's workers for each call. Threads may share it."""

    def __init__(self, plan: Plan, timeout_s: float, notify: Notify) -> None:
        self.plan, self.notify, self.losses = plan, notify, 0
        self._ray = import_ray()
        self._without_room = WithoutRoom(timeout_s, notify)
        self._lock, self._running, self._stopped = threading.Lock(), set[Any](), False

    def call(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """The result of the function. `what` names the call in messages."""
        losses = 0
        while True:
            try:
                return self._result(self._start(function, given))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else BoughError(str(error)) from None
            except self._ray.exceptions.TaskCancelledError:
                raise BoughError(f"{what} was cancelled") from None
            except self._ray.exceptions.RayError as error:
                losses += 1
                with self._lock:
                    self.losses += 1
                why = type(error).__name__.removesuffix("Error")
                if losses >= MAX_LOSSES:
                    raise WorkLostError(f"its worker on the cluster was lost {losses} times ({why})") from error
                self.notify(f"{what}: its worker was lost ({why}); starting it again")

    def on_each_node(self, function: Callable[..., Any], *given: Any) -> dict[str, Any]:
        """The result on every node that has CPUs, by the node's address; without nodes that are lost before."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        remote = self._ray.remote(num_cpus=0, max_retries=0)(function)
        started = {
            node["NodeID"]: remote.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(*given)
            for node in nodes
        }
        found = {}
        for node in nodes:
            try:
                found[node["NodeManagerAddress"]] = self._ray.get(started[node["NodeID"]])
            except self._ray.exceptions.RayTaskError:
                raise
            except self._ray.exceptions.RayError:
                continue
        return found

    def stop(self) -> None:
        """Kills the workers of all calls and waits until they have ended."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        for one in running:
            self._ray.cancel(one, force=True)
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=STOP_S)

    def _start(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        remote = self._ray.remote(
            num_cpus=self.plan.cpus_per_worker,
            num_gpus=self.plan.gpus_per_worker,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )(function)
        with self._lock:
            if self._stopped:
                raise BoughError("the work on the cluster was stopped")
            started = remote.remote(*given)
            self._running.add(started)
        return started

    def _result(self, started: Any) -> Any:
        try:
            while not self._ray.wait([started], timeout=TASK_POLL_S)[0]:
                with self._lock:
                    self._without_room.check(self._has_room())
            return self._ray.get(started)
        finally:
            with self._lock:
                self._running.discard(started)

    def _has_room(self) -> bool:
        """Whether a call fits on a node at all, be it busy or not."""
        needed = {"CPU": self.plan.cpus_per_worker, "GPU": self.plan.gpus_per_worker}
        return any(
            node["Alive"] and all(node["Resources"].get(name, 0) >= number for name, number in needed.items())
            for node in self._ray.nodes()
        )


class WithoutRoom:
    """How long the cluster has had no node to work on: says so now and then, and gives up after `timeout_s`."""

    def __init__(self, timeout_s: float, notify: Notify, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s, self.notify, self.clock = timeout_s, notify, clock
        self._since: float | None = None
        self._said = 0.0

    def check(self, has_room: bool) -> None:
        """Raises ClusterLostError if there has been no room for too long."""
        now = self.clock()
        if has_room:
            self._since = None
            return
        if self._since is None:
            self._since, self._said = now, now - SAY_EVERY_S
        waited = now - self._since
        if waited >= self.timeout_s:
            raise ClusterLostError(
                f"the cluster has had no node to work on for {waited:.0f} s (--cluster-timeout); "
                "the same command resumes when it has one"
            )
        if now - self._said >= SAY_EVERY_S:
            self._said = now
            self.notify(f"the cluster has no node to work on; waiting up to {self.timeout_s - waited:.0f} s more")


# Plays attempts on the workers of a cluster, whatever happens to the workers.
# What a lost worker was playing is played elsewhere, without a trace in the record. An attempt that ends every worker
# it is given to is lost after a few of them, the last ones having played nothing else.

# An attempt that was in flight on this many lost workers in a row is played alone from then on …
SUSPICIOUS = 2
# … and is lost after it was alone on this many lost workers.
DEADLY = 3
# Calls of a worker beside episodes: new weights, the end.
SPARE_CALLS = 8


class ClusterRunner:
    """A runner on the workers of a pool."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._deadly: dict[str, str] = {}  # reasons by attempt

    @property
    def worker_losses(self) -> int:
        """Workers that were lost while they were ready to play."""
        return self._pool.losses

    @property
    def places(self) -> list[Place]:
        """Where workers are ready to play now."""
        return [worker.place for worker in self._pool.dispatcher.workers]

    async def renew(self, name: str, weights: Any) -> None:
        """All workers play with these weights from now on; records call them `name`."""
        await self._pool.renew(name, weights)

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        dispatcher = self._pool.dispatcher
        num_lost = num_lost_alone = 0
        while attempt.id not in self._deadly:
            alone = num_lost >= SUSPICIOUS
            worker = await dispatcher.take(alone=alone)
            begun = time.monotonic()
            try:
                outcome: Outcome = await worker.remote.call("play", attempt, episode)
                worker.note(time.monotonic() - begun)
            except WorkerLostError as error:
                self._pool.lose(worker, error)
                num_lost, num_lost_alone = num_lost + 1, num_lost_alone + alone
                if num_lost_alone >= DEADLY:
                    why = f"{num_lost} workers in a row died while they played it, the last {DEADLY} only it"
                    self._deadly[attempt.id] = f"{why} ({error})"
            else:
                return outcome.result()
            finally:
                dispatcher.give_back(worker, alone=alone)
        raise EnvironmentFailedError(self._deadly[attempt.id])


@asynccontextmanager
async def cluster_runner(
    config: ClusterConfig,
    spec: WorkerSpec,
    *,
    concurrency: int,
    uses_gpu: bool,
    reserved_gpus: float = 0,
    reserved_cpus: float = 0,
    driver_gpu: int | None = None,
    variables: tuple[str, ...] = (),
) -> AsyncIterator[ClusterRunner]:
    """A runner on the cluster of the settings, with as many workers as it has room for.

    `driver_gpu` is the index of the GPU that this process trains on. `variables` are environment variables that
    workers need, such as that of an API key.
    """
    with connected(config), held_gpu(config, driver_gpu, _say) if driver_gpu is not None else nullcontext(0.0) as held:
        plan = make_plan(
            config, nodes(),
            concurrency=concurrency, uses_gpu=uses_gpu,
            reserved_gpus=reserved_gpus + held, reserved_cpus=reserved_cpus,
        )  # fmt: skip
        _say(str(plan))
        surroundings = Surroundings.here(variables=variables, gpus=plan.gpus_per_worker)
        pool = WorkerPool.on_ray(
            Worker, (pack(spec), surroundings), plan,
            max_calls=2 * plan.concurrency + SPARE_CALLS, timeout_s=config.timeout_s, say=_say,
        )  # fmt: skip
        pool.start()
        try:
            yield ClusterRunner(pool)
        finally:
            await pool.close()


@asynccontextmanager
async def collecting_runner(
    config: CollectConfig, environment_class: type[Environment]
) -> AsyncIterator[ClusterRunner]:
    """The runner of a collection, whose agent is the one that the settings name."""
    part = config.cluster.gpus_per_worker
    if config.agent.engine == "vllm" and config.agent.base_url is None and part is not None and part < 1:
        raise InputError("engine vllm takes the whole GPU: gpus_per_worker must be 1 or more")
    spec = WorkerSpec(environment_class, ConfiguredAgent(config.agent, config.sampling), config.limits)
    # A worker without an episode would load the model for nothing.
    concurrency = min(config.concurrency, config.tasks * config.attempts)
    async with cluster_runner(
        config.cluster, spec,
        concurrency=concurrency, uses_gpu=computes(config.agent), variables=(config.agent.key_variable,),
    ) as runner:  # fmt: skip
        yield runner


def computes(agent: AgentConfig) -> bool:
    """Whether the agent computes a model in the worker, instead of asking a server or using no model."""
    return agent.model not in (ExpertAgent.name, RandomAgent.name) and agent.base_url is None


def _say(line: str) -> None:
    console.err().print(console.printable(line), style="yellow", markup=False)
