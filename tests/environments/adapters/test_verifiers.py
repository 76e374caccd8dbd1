"""The adapter of verifiers against a stand-in. verifiers itself: `verifiers_environment`."""

import asyncio
import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from bough.config.groups import LimitsConfig
from bough.engines.base import ContextFullError
from bough.environments import registry as names
from bough.environments.base import EnvironmentFailedError, configured, tasks_of
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.errors import InputError
from bough.rollouts.episode import ModelAgent, play
from bough.types import Message, Task, Trajectory
from tests.engines.server.fake import FakeEngine
from tests.environments.adapters import verifiers_stand_in as stand_in

ADAPTERS = "bough.environments.adapters"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stand_in.install(monkeypatch)
    monkeypatch.setattr(names, "find_spec", lambda package: object())
    monkeypatch.setattr(stand_in.Environment, "loops", set())
    names.adapt.cache_clear()
    yield
    names.adapt.cache_clear()
    for name in stand_in.ADAPTER:
        sys.modules.pop(f"{ADAPTERS}.{name}", None)


@pytest.fixture(autouse=True)
def _uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/somewhere/uv")


def repeat(messages: list[Message]) -> str:
    return messages[-1].content.removeprefix("Say ").rstrip(".")


def played(*tasks: Task, say: Any = repeat, **options: Any) -> list[Trajectory]:
    """The tasks at the same time."""
    environment_class = configured(find("verifiers:words"), options)
    agent = ModelAgent(FakeEngine(say))

    async def one(task: Task) -> Trajectory:
        return (await play(environment_class, task, agent, id=task.id, seed=1, limits=LimitsConfig()))[0]

    async def run() -> list[Trajectory]:
        try:
            return await asyncio.gather(*map(one, tasks))
        finally:
            await shut_down(environment_class)

    return asyncio.run(run())


def words(**options: Any) -> list[Task]:
    return sorted(tasks_of(find("verifiers:words"), options=options, split="all"), key=lambda task: task.id)


def test_a_task_is_played_by_the_harness_and_recorded_with_its_tokens():
    trajectory = played(words()[1])[0]
    assert trajectory.success is True and trajectory.stop == "done"
    assert trajectory.rewards == {"outcome": 1.0, "correct": 1.0, "turns": 1.0}
    assert [message.content for message in trajectory.start] == ["Say w1."]
    call = trajectory.turns[0].call
    assert call is not None and bytes(call.completion_ids) == b"w1"
    assert trajectory.task.environment == "verifiers:words"
    assert trajectory.task.data == {"idx": 1, "name": "word 1", "prompt": "Say w1.", "answer": "w1"}


def test_success_is_a_reward_of_at_least_the_given_one():
    wrong = played(words()[1], say=lambda _: "no")[0]
    assert wrong.success is False and wrong.rewards["outcome"] == 0.0
    assert played(words()[1], say=lambda _: "no", success_reward=0.0)[0].success is True


def test_all_episodes_run_on_one_event_loop():
    assert [one.success for one in played(*words())] == [True] * 3
    assert len(stand_in.Environment.loops) == 1
    loop = stand_in.Environment.loops.pop()
    assert loop.is_closed(), "it ends with the run"


def test_a_harness_that_crashes_is_not_the_models_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stand_in.Environment, "crashes", True)
    with pytest.raises(EnvironmentFailedError, match="HarnessError: exit code 3"):
        played(words()[0])


def test_a_harness_that_gives_up_on_a_full_context_is():
    answers = iter(["first"])

    def say(_: list[Message]) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise ContextFullError("full") from None

    trajectory = played(Task(id="long", data={"prompt": "one\ntwo"}), say=say)[0]
    assert (trajectory.success, trajectory.stop, len(trajectory.turns)) == (False, "context_full", 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"correct": 1.0, "traces": 2}, "ran its agent 2 times"),
        ({"correct": 1.0, "traces": 0}, "ran its agent 0 times"),
        ({"correct": 1.0, "stop": "scoring_timeout"}, "ended with scoring_timeout"),
        ({"correct": 1.0, "brief": None}, "reward brief was not computed"),
        (
            {"errors": [SimpleNamespace(type="SandboxError", message="x" * 5000 + " the end")]},
            "SandboxError: x+ the end",
        ),
    ],
)
def test_what_is_not_a_result_is_a_failure_of_the_environment(given: dict[str, Any], said: str):
    read = import_module(f"{ADAPTERS}.verifiers").read_episode
    with pytest.raises(EnvironmentFailedError, match=said) as error:
        read(stand_in.episode(**given), 1.0)
    assert len(str(error.value)) < 1100


def test_rewards_keep_their_names_unless_a_result_has_them_already():
    read = import_module(f"{ADAPTERS}.verifiers").read_episode
    result = read(stand_in.episode(correct=0.25, success=0.5, stop="agent_timeout"), 0.75)
    assert result == {"turns": 1.0, "correct": 0.25, "verifiers_success": 0.5, "reward": 0.75, "success": True}
    assert read(stand_in.episode(), 1.0) is None, "without rewards the outcome is not known"


def test_splits_share_no_task_and_a_seed_fixes_the_order():
    found, options = find("verifiers:words"), {"taskset": {"size": 200}}
    parts = {
        split: [task.id for task in tasks_of(found, options=options, split=split)]
        for split in ("train", "seen", "unseen", "all")
    }
    assert sorted(parts["train"] + parts["seen"] + parts["unseen"]) == sorted(parts["all"])
    assert len(parts["all"]) == 200 and 140 < len(parts["train"]) < 180
    assert [task.id for task in tasks_of(found, options=options, split="all")] == parts["all"]
    assert [task.id for task in tasks_of(found, options=options, split="all", seed=1)] != parts["all"]
    with pytest.raises(InputError, match="split is 'test'; choose one of train, seen, unseen, all"):
        list(tasks_of(found, options={}, split="test"))


@pytest.mark.parametrize(
    ("taskset", "options", "said"),
    [
        ("words", {"agent": {"model": "gpt"}}, "cannot set model, which is set by the run"),
        ("words", {"taskset": {"task": {"rewards": {"x": {"fn": "evil.py:f"}}}}}, "fn in --options taskset names code"),
        ("words", {"taskset": {"sise": 3}}, "taskset.sise"),
        ("words", {"agent": {"harness": "bash"}}, "would run the model's code on this machine"),
        ("containers", {}, "its tasks need a container"),
        ("two-agents", {}, r"has 2 agents \(agent, judge\)"),
    ],
)
def test_options_that_cannot_be_used_are_refused(taskset: str, options: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        list(tasks_of(find(f"verifiers:{taskset}"), options=options))


def test_code_runs_in_a_container_or_with_leave():
    for options in ({"runtime": "docker", "harness": "bash"}, {"harness": "bash"}):
        assert words(agent=options, allow_local_code="runtime" not in options)


def test_an_unknown_taskset_is_said():
    with pytest.raises(InputError, match="environment 'verifiers:nothing' raised KeyError"):
        find("verifiers:nothing")
