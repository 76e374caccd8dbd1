import asyncio
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bough import bit_exact
from bough.config.groups import AgentConfig, LimitsConfig, SamplingConfig
from bough.engines.base import EngineError
from bough.environments.base import EnvironmentFailedError, TooSlowError
from bough.errors import BoughError, InputError, RewardRangeError
from bough.rollouts.collect import LocalRunner
from bough.rollouts.episode import ExpertAgent
from bough.rollouts.ray_workers import Agents, ConfiguredAgent, OneAgent, Outcome, Surroundings, Worker, WorkerSpec
from tests.rollouts.ray.worlds import Echo, NeedsFile, attempt

WITHOUT_ADAPTER = ConfiguredAgent(AgentConfig(model="tiny", adapter=Path("gone")), SamplingConfig())
EXPERT = ConfiguredAgent(AgentConfig(model="expert"), SamplingConfig())


def worker(environment_class: type = Echo, make_agents: Any = EXPERT) -> Worker:
    return Worker(pickle.dumps(WorkerSpec(environment_class, make_agents, LimitsConfig())))


async def started(*given: Any) -> Worker:
    made = worker(*given)
    assert await made.start() is None
    return made


async def test_a_record_is_that_of_this_process():
    made = await started()
    outcomes = await asyncio.gather(*(made.play(attempt(number)) for number in range(3)))
    local = LocalRunner.of(Echo, ExpertAgent(), LimitsConfig())
    for number, outcome in enumerate(outcomes):
        assert pickle.loads(pickle.dumps(outcome)).result() == await local.play(attempt(number))
    await made.close()


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [("fails", EnvironmentFailedError, "the world broke"), ("refuses", InputError, "this task is not allowed")],
)
async def test_errors_come_back_as_what_they_are(what: str, error: type[Exception], text: str):
    outcome = await (await started()).play(attempt(**{what: True}))
    with pytest.raises(error, match=text):
        outcome.result()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EngineError("no answer"), EngineError),
        (TooSlowError("late"), EnvironmentFailedError),
        (RewardRangeError("it", "t", 2.0, (0.0, 1.0)), BoughError),
    ],
)
def test_errors_that_cannot_be_pickled_travel_as_words(error: BoughError, kind: type[BoughError]):
    with pytest.raises(BoughError) as raised:
        pickle.loads(pickle.dumps(Outcome.of_error(error))).result()
    assert type(raised.value) is kind and str(raised.value) == str(error)


async def test_a_node_without_what_the_environment_needs_says_so():
    assert await worker(NeedsFile).start() == "its file is missing"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (worker(make_agents=WITHOUT_ADAPTER), "gone"),
        (Worker(b"cno_such_module\nThing\n."), "ModuleNotFoundError: No module named 'no_such_module'"),
        (Worker(b"", Surroundings(version="0.0.1")), "the driver has 0.0.1; install the same version"),
    ],
)
async def test_a_worker_that_cannot_start_says_why(made: Worker, why: str):
    refusal = await made.start()
    assert refusal is not None and why in refusal


@dataclass
class Versions:
    """Makes agents that remember their weights."""

    async def __call__(self) -> Agents:
        return _Versioned(ExpertAgent())


@dataclass(frozen=True)
class _Versioned(OneAgent):
    async def renew(self, name: str, weights: Any) -> None:
        NAMES.append((name, weights))


NAMES: list[tuple[str, Any]] = []


async def test_new_weights_reach_the_agents():
    made = await started(Echo, Versions())
    await made.renew("step-1", [1.0])
    assert NAMES == [("step-1", [1.0])]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Entering other surroundings must not change the other tests' own."""
    import torch

    threads, monkeypatch_folder = torch.get_num_threads(), Path.cwd()
    for name in ("OMP_NUM_THREADS", "MY_KEY", bit_exact.VARIABLE):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    gpus = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    yield tmp_path
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    torch.set_num_threads(threads)
    os.chdir(monkeypatch_folder)


def test_a_worker_has_the_drivers_folder_keys_and_one_thread(restored: Path, monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.chdir(restored)
    here = pickle.loads(pickle.dumps(Surroundings.here(variables=("MY_KEY", "NOT_SET"))))
    assert here.variables["MY_KEY"] == "secret" and "NOT_SET" not in here.variables
    monkeypatch.setenv("MY_KEY", "other")
    monkeypatch.chdir("/")
    here.enter()
    assert Path.cwd() == restored.resolve()
    assert (os.environ["MY_KEY"], os.environ["OMP_NUM_THREADS"], torch.get_num_threads()) == ("secret", "1", 1)


@pytest.mark.parametrize(("gpus", "visible"), [(0.0, ""), (0.5, "0"), (1.0, "0")])
@pytest.mark.usefixtures("restored")
def test_a_worker_without_gpus_sees_none(gpus: float, visible: str):
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # as Ray sets it where a worker has GPUs
    Surroundings.here(gpus=gpus).enter()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
