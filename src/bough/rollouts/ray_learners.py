"""Several learner processes of one run, started by Ray Train on the nodes of a cluster.

Each of them calls the same training function, as under `torchrun`: they find each other by
torch.distributed, which Ray Train has set up, and share each batch. The driver shows what the
first of them prints and gets its result, or the error that ended the run.
"""

from __future__ import annotations

import io
import logging
import pickle
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bough.config.groups import OnlineClusterConfig
from bough.config.training import TrainingConfig
from bough.errors import BoughError, InputError
from bough.event_loop import Interrupts, request_stop
from bough.policy.processes import ProcessLostError, packed_error
from bough.rollouts.ray import ClusterLostError, connected, import_ray, nodes
from bough.rollouts.ray_workers import Surroundings, shared_token
from bough.terminal import console
from bough.training.run import Trained

C = TypeVar("C", bound=TrainingConfig)
POLL_S = 0.2
# How often a learner asks whether it is to stop.
ASK_S = 0.5
# How long learners that were ended take to be gone.
PATIENCE_S = 30.0


@dataclass(frozen=True)
class LearnersPlan:
    """The learners of a run and what each of them gets."""

    count: int
    gpus: float

    def __str__(self) -> str:
        if not self.gpus:
            return f"{self.count} learners with 1 CPU each"
        if self.gpus >= 1:
            return f"{self.count} learners with 1 GPU each"
        each = round(1 / self.gpus)
        return (
            f"{self.count} learners, {each} on each GPU: they communicate through gloo, because NCCL refuses to share "
            "a GPU; a GPU for each is faster"
        )


def plan_learners(count: int, cluster: Sequence[Mapping[str, float]]) -> LearnersPlan:
    """A GPU for each learner; equal parts of the GPUs where there are fewer; CPUs where there are none.

    InputError where the learners, a CPU each, leave no CPU for a worker that plays.
    """
    cpus = int(sum(node.get("CPU", 0) for node in cluster))
    if cpus < count + 1:
        raise InputError(
            f"--learners {count} needs {count + 1} CPUs, one for each learner and one for a worker that plays; "
            f"the cluster has {cpus}: lower --learners or add a node"
        )
    gpus = int(sum(node.get("GPU", 0) for node in cluster))
    if not gpus:
        return LearnersPlan(count, 0.0)
    return LearnersPlan(count, 1 / -(-count // gpus))


def train_with_learners(config: C, cluster: OnlineClusterConfig, train: Callable[[C], Trained]) -> Trained:
    """Runs `train(config)` in `cluster.learners` processes of the cluster; returns what the first of them does.

    `train` must be a function that a fresh process can import.
    """
    if not Path(config.output_dir).is_absolute():
        config = config.model_copy(update={"output_dir": Path(config.output_dir).absolute()})
    with connected(cluster), shared_token(Path(config.output_dir)) as token:
        ray = import_ray()
        plan = plan_learners(cluster.learners, nodes())
        console.announce(str(plan))
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        relay = ray.remote(Relay).options(num_cpus=0, scheduling_strategy=here).remote()
        given = {
            "train": train, "config": config, "relay": relay, "surroundings": Surroundings.here(gpus=plan.gpus),
            "token": token,
        }  # fmt: skip
        interrupts = Interrupts()
        with tempfile.TemporaryDirectory(prefix="bough-learners-") as scratch:
            failure = followed(ray, relay, Fit(plan, given, scratch), cluster.timeout_s, interrupts)
        outcomes = ray.get(relay.ended.remote())
        ray.kill(relay)
    return result(plan.count, outcomes, failure, interrupted=interrupts.requested)


def result(
    count: int, outcomes: Mapping[int, bytes], failure: BaseException | None, *, interrupted: bool = False
) -> Trained:
    """What the first learner returned; or raises the error that ended the run, StoppedError if it was `interrupted`.

    `outcomes` are the packed results or errors by rank: a learner that died has none. `failure` is what Ray Train
    raised.
    """
    found = {rank: pickle.loads(outcome) for rank, outcome in sorted(outcomes.items())}  # noqa: S301  our learners'
    errors = {rank: error for rank, (_, error) in found.items() if error is not None}
    if failure is None and 0 in found and not errors:
        trained: Trained = found[0][0]
        if interrupted:  # when the learners had finished already
            raise trained.interrupted()
        return trained
    for error in errors.values():
        if isinstance(error, BoughError | KeyboardInterrupt) and not isinstance(error, ProcessLostError):
            raise error
    # An error of the connection is the trace of a learner that has died without a word.
    failed = getattr(failure, "worker_failures", {})
    silent = [rank for rank in range(count) if rank not in found]
    for rank in [rank for rank in silent if rank in failed] or ([] if errors else silent):
        why = f" ({_first_line(failed[rank])})" if rank in failed else ""
        raise BoughError(f"learner {rank + 1} of {count} has died{why}; --resume continues the run")
    for rank, error in errors.items():
        raise BoughError(f"learner {rank + 1} of {count} failed: {error}; --resume continues the run") from error
    raise BoughError(f"Ray Train could not run the learners: {_first_line(failure)}") from failure


class Fit(threading.Thread):
    """Runs Ray Train in a thread: in the main thread it would take over Ctrl-C and then exit with 0."""

    def __init__(self, plan: LearnersPlan, given: Mapping[str, Any], scratch: str) -> None:
        super().__init__(name="learners", daemon=True)
        self.failure: BaseException | None = None
        self._plan, self._given, self._scratch = plan, dict(given), scratch

    def run(self) -> None:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        gpus = self._plan.gpus
        variables = dict(self._given["surroundings"].variables)  # some are read when torch is loaded
        options: dict[str, Any] = {"worker_runtime_env": {"env_vars": variables}}
        logging.getLogger("ray.train").setLevel(logging.ERROR)
        try:
            TorchTrainer(
                learn,
                train_loop_config=self._given,
                torch_config=TorchConfig(backend="nccl" if gpus >= 1 else "gloo"),
                scaling_config=ScalingConfig(
                    num_workers=self._plan.count,
                    use_gpu=gpus > 0,
                    resources_per_worker={"CPU": 1} | ({"GPU": gpus} if gpus else {}),
                ),
                run_config=RunConfig(name="learners", storage_path=self._scratch, **options),
            ).fit()
        except BaseException as error:
            self.failure = error


def followed(ray: Any, relay: Any, fit: Fit, timeout_s: float, interrupts: Interrupts) -> BaseException | None:
    """Prints what the first learner prints until all have ended.

    The first interrupt asks them to stop after their step, with a checkpoint; the second ends them.
    ClusterLostError where none has begun after `timeout_s`: others may use what the cluster has.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with interrupts, interrupts.calling(relay.stop.remote):
            fit.start()
            while fit.is_alive():
                fit.join(POLL_S)
                texts, actors = ray.get(relay.read.remote())
                for stream, text in texts:
                    file = sys.stdout if stream == "stdout" else sys.stderr
                    file.write(text)
                    file.flush()
                if interrupts.requested and not actors:
                    raise KeyboardInterrupt
                if time.monotonic() > deadline and not actors:
                    wait = f"no learner could start in {timeout_s:g} s"
                    raise ClusterLostError(f"{wait}; `ray status` shows what is in use")
    except BaseException:
        for actor in ray.get(relay.read.remote())[1]:
            ray.kill(actor)
        fit.join(PATIENCE_S)
        raise
    return fit.failure


def learn(given: dict[str, Any]) -> None:
    """What each learner does, in a process that Ray Train has started and connected with the others.

    `token` is a file that the driver has written into the run folder.
    """
    ray, relay = import_ray(), given["relay"]
    rank = ray.train.get_context().get_world_rank()
    runtime = ray.get_runtime_context()
    ray.get(relay.join.remote(runtime.current_actor))
    try:
        given["surroundings"].enter()
        check_disk(given["token"])
        with _printing(relay, rank), asking(ray, relay):
            trained = given["train"](given["config"])
        outcome = pickle.dumps((trained, None))
    except BaseException as error:
        ray.get(relay.end.remote(rank, packed_error(error)))
        raise
    ray.get(relay.end.remote(rank, outcome))


@contextmanager
def asking(ray: Any, relay: Any) -> Iterator[None]:
    """Asks meanwhile whether the driver wants the learners to stop, and passes it on to the run."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(ASK_S):
            if ray.get(relay.stopping.remote()) and request_stop():
                return

    threading.Thread(target=ask, name="asking", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def check_disk(token: Path) -> None:
    """InputError unless this process sees the run folder that the driver sees."""
    if not token.is_file():
        raise InputError(
            f"--output-dir {token.parent} is not the same folder on {socket.gethostname()}: learners on several "
            "machines need a run folder on a disk that all of them see, such as NFS"
        )


@contextmanager
def _printing(relay: Any, rank: int) -> Iterator[None]:
    """What the first learner prints goes to the driver; the others print into Ray's log files."""
    if rank:
        yield
        return
    streams = [RelayStream(name, relay.write.remote) for name in ("stdout", "stderr")]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        yield
        for stream in streams:
            stream.flush()


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0] if error is not None else "unknown error"


# What learners tell the driver (prints, how each ended) and what it tells them: when to stop.


class Relay:
    """Keeps it until the driver asks. It runs as an actor on the driver's node."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, str]] = []
        self._actors: list[Any] = []
        self._outcomes: dict[int, bytes] = {}
        self._stopping = False

    def join(self, actor: Any) -> None:
        """A learner has begun."""
        self._actors.append(actor)

    def write(self, stream: str, text: str) -> None:
        """Text that was printed to `stream`, stdout or stderr."""
        self._texts.append((stream, text))

    def end(self, rank: int, outcome: bytes) -> None:
        """A learner's result or error, pickled."""
        self._outcomes[rank] = outcome

    def stop(self) -> None:
        """The driver asks the learners to stop."""
        self._stopping = True

    def stopping(self) -> bool:
        """Whether the learners are asked to stop."""
        return self._stopping

    def read(self) -> tuple[list[tuple[str, str]], list[Any]]:
        """What was printed since the last time, and the learners, as far as they have begun."""
        texts, self._texts = self._texts, []
        return texts, self._actors

    def ended(self) -> dict[int, bytes]:
        """The outcomes of the learners by rank."""
        return self._outcomes


class RelayStream(io.TextIOBase):
    """A text file whose lines go to `send`, with the name of the stream."""

    def __init__(self, name: str, send: Callable[[str, str], object]) -> None:
        self._name, self._send, self._line = name, send, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines, newline, rest = (self._line + text).rpartition("\n")
        self._line = rest
        if newline:
            self._send(self._name, lines + newline)
        return len(text)

    def flush(self) -> None:
        """Sends the beginning of a line, too."""
        if self._line:
            self._send(self._name, self._line)
            self._line = ""
