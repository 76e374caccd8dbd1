import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.config.groups import CollectConfig, LimitsConfig
from bough.environments.base import Environment, Observation
from bough.errors import RowError
from bough.evaluation.contest import EvalConfig
from bough.rollouts.collect import AllLostError, Attempt, LocalRunner, Tally, attempts, collect, wanted_tasks
from bough.rollouts.episode import ExpertAgent, RandomAgent
from bough.types import Task, Trajectory
from tests.environments.worlds import Breaking, Counting, Unsure

TASKS = [Task(id=f"t{number}", data={"goal": 2 + number % 3}) for number in range(5)]


def collected(
    agent: Any = None, environment_class: type[Environment] = Counting, wanted: list[Attempt] | None = None, **more: Any
) -> tuple[Tally, dict[str, Trajectory]]:
    kept: dict[str, Trajectory] = {}
    tally = asyncio.run(
        collect(
            LocalRunner.of(environment_class, agent or ExpertAgent(), LimitsConfig()),
            wanted if wanted is not None else attempts(TASKS, 2, 0),
            lambda trajectory, images: kept.update({trajectory.id: trajectory}),
            **more,
        )
    )
    return tally, kept


def test_each_attempt_has_a_name_and_a_seed_of_its_own():
    wanted = list(attempts(TASKS[:2], 2, 7))
    assert [attempt.id for attempt in wanted] == ["t0#0", "t0#1", "t1#0", "t1#1"]
    assert len({attempt.seed for attempt in wanted}) == 4
    assert wanted == list(attempts(TASKS[:2], 2, 7)) and wanted[0].seed != next(attempts(TASKS, 1, 8)).seed


def test_every_attempt_is_played_and_counted():
    tally, kept = collected()
    assert len(kept) == 10 and (tally.episodes, tally.successes) == (10, 10)
    assert tally.turns == sum(len(trajectory.turns) for trajectory in kept.values()) == 2 * (2 + 3 + 4 + 2 + 3)
    assert tally.to_json()["success_rate"] == 1.0 and tally.stops == {"done": 10}


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_the_same_seed_gives_the_same_episodes_however_many_run_at_once(concurrency: int):
    assert collected(RandomAgent(), concurrency=concurrency)[1] == collected(RandomAgent())[1]


def test_a_world_that_breaks_costs_a_retry_and_no_episode():
    Breaking.broken = {"t1": 2, "t3": 1}
    tally, kept = collected(environment_class=Breaking, wanted=list(attempts(TASKS, 1, 0)))
    assert len(kept) == 5 and all(trajectory.success for trajectory in kept.values())
    assert tally.faults == {"environment": 3} and tally.lost == {}
    assert kept["t1#0"].info["retries"] == 2 and "retries" not in kept["t0#0"].info


def test_a_world_that_keeps_breaking_is_named_and_not_blamed_on_the_agent():
    Breaking.broken = {"t1": 99}
    tally, kept = collected(environment_class=Breaking, wanted=list(attempts(TASKS, 1, 0)), retries=1)
    assert set(kept) == {"t0#0", "t2#0", "t3#0", "t4#0"} and tally.episodes == 4
    assert tally.lost == {"t1#0": "the browser died"} and tally.faults == {"environment": 4}, (
        "two tries, and two more at the end"
    )


def test_an_episode_that_is_unlucky_too_often_gets_its_turn_at_the_end():
    Breaking.broken = {"t1": 3}
    tally, kept = collected(environment_class=Breaking, wanted=list(attempts(TASKS, 1, 0)), retries=1)
    assert list(kept)[-1] == "t1#0" and kept["t1#0"].info["retries"] == 3 and kept["t1#0"].success
    assert tally.lost == {} and tally.faults == {"environment": 3}


def test_a_task_without_advice_ends_its_own_episode_only():
    tally, kept = collected(environment_class=Unsure, wanted=list(attempts(TASKS, 1, 0)))
    assert [kept[f"t{number}#0"].stop for number in range(5)] == ["done", *["no_expert"] * 2, "done", "no_expert"]
    assert tally.stops == {"no_expert": 3, "done": 2} and tally.successes == 2
    assert tally.faults == {} and tally.lost == {}, "it is not tried again"


def test_an_unknown_outcome_is_no_failure_and_when_all_is_lost_the_first_reason_is_told():
    tally = Tally()
    turns: list[Any] = []
    start = [{"role": "user", "content": "x"}]
    for success in (True, False, None):
        tally.add(Trajectory(id="a", task=TASKS[0], start=start, turns=turns, success=success))
    assert tally.to_json()["success_rate"] == 0.5
    error = AllLostError({"a#0": "down", "b#0": "gone"})
    assert str(error) == "all 2 episodes failed; a#0: down" and error.exit_code == 1


@pytest.mark.parametrize("settings", [CollectConfig, EvalConfig])
def test_fewer_tasks_than_were_asked_for_are_told(settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "goal": 2}\n{"id": "b", "goal": 2}\n')
    values = {"environment": "tests.environments.worlds:Counting", "output": tmp_path}
    values |= {"task_file": tmp_path / "tasks.jsonl", "model": "expert"}

    def wanted(config: CollectConfig | EvalConfig) -> list[Task]:
        return wanted_tasks(Counting, config.environment, config.tasks, config.seed)

    assert [task.id for task in wanted(settings(**values, tasks=2))] == ["a", "b"]
    assert capsys.readouterr().err == ""
    assert len(wanted(settings(**values, tasks=50))) == 2
    assert capsys.readouterr().err == "50 tasks were requested; there are only 2\n"


def test_the_next_episode_is_played_while_the_last_one_is_written():
    """The first write ends when the other episodes have begun; only then does its episode count."""
    begun: list[str] = []
    counted: list[int] = []
    all_begun = asyncio.Event()

    class Noted(Counting):
        async def start(self) -> Observation:
            begun.append(self.task.id)
            if len(begun) == len(TASKS):
                all_begun.set()
            return await super().start()

    async def write(trajectory: Trajectory, images: Any) -> None:
        await all_begun.wait()

    async def run() -> Tally:
        async with asyncio.timeout(60):
            return await collect(
                LocalRunner.of(Noted, ExpertAgent(), LimitsConfig()), list(attempts(TASKS, 1, 0)), write,
                concurrency=3, tell=lambda tally: counted.append(len(begun)),
            )  # fmt: skip

    assert asyncio.run(run()).episodes == 5 and min(counted) == 5


def test_episodes_wait_for_a_disk_that_is_too_slow():
    begun: list[str] = []
    slow = asyncio.Event()

    class Noted(Counting):
        async def start(self) -> Observation:
            begun.append(self.task.id)
            return await super().start()

    async def write(trajectory: Trajectory, images: Any) -> None:
        await slow.wait()

    async def run() -> Tally:
        plays = collect(
            LocalRunner.of(Noted, ExpertAgent(), LimitsConfig()), list(attempts(TASKS, 4, 0)), write, concurrency=2
        )
        playing = asyncio.ensure_future(plays)
        while len(begun) < 4:
            await asyncio.sleep(0.001)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(begun) == 4, "two are unwritten, and two are finished and wait"
        slow.set()
        return await playing

    assert asyncio.run(run()).episodes == 20


@pytest.mark.parametrize("late", [False, True])
def test_an_episode_that_cannot_be_written_is_lost_and_the_others_are_not(late: bool):
    async def fail(trajectory: Trajectory) -> None:
        if trajectory.id == "t1#0":
            raise RowError("not_json", "it cannot be written as JSON")

    def write(trajectory: Trajectory, images: Any) -> Any:
        if late:
            return fail(trajectory)
        if trajectory.id == "t1#0":
            raise RowError("not_json", "it cannot be written as JSON")
        return None

    tally = asyncio.run(collect(LocalRunner.of(Counting, ExpertAgent(), LimitsConfig()), attempts(TASKS, 1, 0), write))
    assert tally.episodes == 4 and tally.lost == {"t1#0": "it cannot be written as JSON"}
    assert tally.faults == {"environment": 1}


PROGRAM = """
import gc
from bough.rollouts.collect import spare_what_is_loaded
spare_what_is_loaded()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
spare_what_is_loaded()
print(frozen > 1000, gc.get_freeze_count() == frozen, gc.get_threshold()[0] == 20_000)
"""


def test_what_is_loaded_is_spared_once_and_what_comes_later_is_not():
    # In a process of its own: what is frozen stays so.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]


FREEING = """
import gc, sys, types, weakref
from bough.rollouts.collect import free_gpu_memory, spare_what_is_loaded
class Model: pass
model = Model()
model.itself, alive = model, weakref.ref(model)
spare_what_is_loaded()
del model
free_gpu_memory()
print(alive() is not None)
emptied = []
cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: emptied.append(alive() is None))
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
free_gpu_memory()
print(emptied == [True], gc.get_freeze_count() > 1000)
"""


def test_models_of_finished_work_are_freed_where_a_gpu_is_in_use_though_they_were_spared():
    done = subprocess.run([sys.executable, "-c", FREEING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]
