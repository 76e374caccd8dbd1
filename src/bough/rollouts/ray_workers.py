"""A process of the cluster that plays episodes: an environment, who plays in it, and the event loop that it runs on.

A `Worker` does not depend on Ray. What it is made from travels as bytes and is read in `start`, so
that a node on which something is missing can say what.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
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
from bough.rollouts.collect import Attempt, Images, LocalRunner
from bough.rollouts.episode import Agent, ExpertAgent, RandomAgent, make_agent
from bough.rollouts.ray import connected, held_gpu, import_ray, make_plan, nodes
from bough.rollouts.ray_pool import Place, WorkerLostError, WorkerPool
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
    """What a worker is made from. `make_agents` is pickled, and called in the worker."""

    environment_class: type[Environment]
    make_agents: Callable[[], Awaitable[Agents]]
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
        if not self.gpus:  # Ray shows all of them to a process that has none
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        elif self.gpus < 1:
            import torch

            if torch.cuda.is_available():
                torch.cuda.set_per_process_memory_fraction(self.gpus)


@contextmanager
def shared_token(folder: Path) -> Iterator[Path]:
    """A new file in `folder` by which the process of a worker can tell that it sees the same disk."""
    token = folder / f".token-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        token.write_text(token.name, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror}") from None
    try:
        yield token
    finally:
        token.unlink(missing_ok=True)


def refusal(error: Exception) -> str:
    """Why a worker cannot start, such as a module that is not installed there or a GPU without memory."""
    return str(error) if isinstance(error, BoughError) else exception_line(error)


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
    cloudpickle = import_ray().cloudpickle
    modules = _own_modules(code)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(thing))
    except Exception as error:  # whatever the user's objects raise
        raise InputError(
            f"{name} cannot be sent to the workers of a cluster ({exception_line(error)}); keep what cannot be "
            "pickled, such as connections and locks, out of its module and create it in __init__ or start"
        ) from error
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
    found = {name: module for name, module in list(sys.modules.items()) if getattr(module, "__file__", None)}
    files = {name: Path(str(module.__file__)).resolve() for name, module in found.items()}
    own = {name for name, file in files.items() if not str(file).startswith((OURS, STANDARD_LIBRARY, *PACKAGES))}
    folders = {files[name].parent for name in own & names}
    return [found[name] for name in own - {"__main__"} if files[name].parent in folders]


# Plays attempts on the workers of a cluster, whatever happens to the workers.
# What a lost worker was playing is played elsewhere, without a trace in the record. An attempt that ends every worker
# it is given to is lost after a few of them.

# Of the attempts that were in flight on this many lost workers in a row, only one is played at a time …
SUSPICIOUS = 2
# … and it is lost after this many more.
DEADLY = 3
# Calls of a worker beside episodes: new weights, the end.
SPARE_CALLS = 8


class ClusterRunner:
    """A runner on the workers of a pool."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool, self._suspects = pool, asyncio.Lock()
        self._deadly: dict[str, str] = {}  # reasons by attempt

    @property
    def worker_losses(self) -> int:
        """Workers that were lost while they were ready to play."""
        return self._pool.losses

    @property
    def places(self) -> list[Place]:
        """Where workers are ready to play now."""
        return [worker.place for worker in self._pool.workers]

    async def renew(self, name: str, weights: Any) -> None:
        """All workers play with these weights from now on; records call them `name`."""
        await self._pool.renew(name, weights)

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        num_lost = 0
        while attempt.id not in self._deadly:
            try:
                async with self._suspects if num_lost >= SUSPICIOUS else nullcontext():
                    outcome: Outcome = await self._pool.do("play", attempt, episode)
                return outcome.result()
            except WorkerLostError as error:
                num_lost += 1
                if num_lost >= SUSPICIOUS + DEADLY:
                    self._deadly[attempt.id] = f"{num_lost} workers in a row died while they played it ({error})"
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
    trains_here: bool = False,
    variables: tuple[str, ...] = (),
) -> AsyncIterator[ClusterRunner]:
    """A runner on the cluster of the settings, with as many workers as it has room for.

    With `trains_here` this process trains on a GPU of its machine. `variables` are environment variables that
    workers need, such as that of an API key.
    """
    with connected(config), held_gpu(_say) if trains_here else nullcontext(0.0) as held:
        plan = make_plan(
            config, nodes(),
            concurrency=concurrency, uses_gpu=uses_gpu,
            reserved_gpus=reserved_gpus + held, reserved_cpus=reserved_cpus,
        )  # fmt: skip
        _say(str(plan))
        surroundings = Surroundings.here(variables=variables, gpus=plan.gpus_per_worker)
        pool = WorkerPool.on_ray(
            Worker, (pack(spec), surroundings), plan,
            most=2 * plan.concurrency, spare_calls=SPARE_CALLS, timeout_s=config.timeout_s, say=_say,
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
    part, agent = config.cluster.gpus_per_worker, config.agent
    if agent.engine == "vllm" and agent.base_url is None and part is not None and part < 1:
        raise InputError("engine vllm takes the whole GPU: gpus_per_worker must be 1 or more")
    spec = WorkerSpec(environment_class, ConfiguredAgent(agent, config.sampling), config.limits)
    # A worker without an episode would load the model for nothing.
    concurrency = min(config.concurrency, config.tasks * config.attempts)
    async with cluster_runner(
        config.cluster, spec, concurrency=concurrency, uses_gpu=computes(agent), variables=(agent.key_variable,)
    ) as runner:
        yield runner


def computes(agent: AgentConfig) -> bool:
    """Whether the agent computes a model in the worker, instead of asking a server or using no model."""
    return agent.model not in (ExpertAgent.name, RandomAgent.name) and agent.base_url is None


def _say(line: str) -> None:
    console.err().print(console.printable(line), style="yellow", markup=False)
