"""verifiers itself, with its own harness in a process: `make test-verifiers`. Elsewhere these tests are skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bough.cli import main
from bough.config.groups import LimitsConfig
from bough.environments.base import EnvironmentFailedError, configured, tasks_of
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.errors import InputError
from bough.rollouts.episode import ModelAgent, play
from bough.types import Message, Trajectory
from tests.engines.server.fake import FakeEngine

pytestmark = [
    pytest.mark.skipif(
        find_spec("verifiers") is None, reason="verifiers is not installed here; make test-verifiers installs it"
    ),
    pytest.mark.timeout(600),
]


@pytest.fixture(autouse=True, scope="module")
def _importable() -> Iterator[None]:
    """The modules of this folder, as if they were installed; tool servers are processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        yield


def played(
    say: Callable[[list[Message]], str], number: int = 0, taskset_name: str = "addition", **options: Any
) -> Trajectory:
    environment_class = configured(find(f"verifiers:{taskset_name}"), options)

    async def run() -> Trajectory:
        task = sorted(tasks_of(environment_class, options=options, split="all"), key=lambda one: one.id)[number]
        try:
            agent, limits = ModelAgent(FakeEngine(say)), LimitsConfig(step_timeout_s=300)
            return (await play(environment_class, task, agent, id="one", seed=1, limits=limits))[0]
        finally:
            await shut_down(environment_class)

    return asyncio.run(run())


def test_the_harness_plays_and_verifiers_rewards():
    right = played(lambda _: "4", number=1)
    assert right.success is True and right.stop == "done"
    assert right.rewards == {"outcome": 1.0, "correct": 1.0, "letters": 0.0, "length": 1.0}
    assert [message.content for message in right.start] == ["What is 2 + 2? Answer with the number alone."]
    call = right.turns[0].call
    assert call is not None and bytes(call.completion_ids) == b"4" and call.logprobs == [-0.5]
    assert right.task.id == "sum-2" and right.task.environment == "verifiers:addition"

    wrong = played(lambda _: "four", number=1)
    assert wrong.success is False and wrong.rewards["outcome"] == 0.5 and wrong.rewards["letters"] == 1.0


def test_tools_of_a_task_are_called_and_all_turns_are_recorded():
    def say(messages: list[Message]) -> str:
        if messages[-1].role == "tool":
            return messages[-1].content.strip()
        return '<tool_call>\n{"name": "dice_read", "arguments": {"which": "red"}}\n</tool_call>'

    trajectory = played(say, taskset_name="dice")
    assert [tool["function"]["name"] for tool in trajectory.tools] == ["dice_read"]  # type: ignore[index, call-overload]
    assert len(trajectory.turns) == 2 and trajectory.turns[0].prompt is None
    assert [message.content for message in trajectory.turns[0].observation] == ["5"]
    assert trajectory.success is True and trajectory.rewards["outcome"] == 1.0


@pytest.mark.parametrize("asks_first", [False, True])
def test_a_harness_that_crashes_is_not_the_models_failure(asks_first: bool):
    with pytest.raises(EnvironmentFailedError, match=r"(?s)HarnessError.*the harness fell over"):
        played(lambda _: "2", agent={"harness": {"id": "crashing", "asks_first": asks_first}})


def test_a_reward_that_raises_is_not_the_models_failure():
    with pytest.raises(EnvironmentFailedError, match=r"TaskError.*UnicodeError: no such number"):
        played(lambda _: "raise")


def test_options_reach_the_taskset():
    found = find("verifiers:addition")
    assert len(list(tasks_of(found, options={"taskset": {"largest": 5}}, split="all"))) == 5
    split = [
        len(list(tasks_of(found, options={"taskset": {"largest": 200}}, split=one))) for one in ("train", "unseen")
    ]
    assert 140 < split[0] < 180 and 5 < split[1] < 35
    with pytest.raises(InputError, match=r"taskset\.smallest|smallest"):
        list(tasks_of(found, options={"taskset": {"smallest": 5}}, split="all"))
    with pytest.raises(InputError, match="allow_local_code"):
        list(tasks_of(found, options={"agent": {"harness": "bash"}}, split="all"))
    with pytest.raises(InputError, match="no_such_taskset"):
        find("verifiers:no-such-taskset")


def test_grpo_trains_on_episodes_of_the_harness(tmp_path: Path):
    words = "grpo --environment verifiers:addition --split all --model tiny --max-new-tokens 8 --max-steps 2"
    more = ["--batch-size", "1", "--group-size", "2", "--no-watch", "--output-dir", str(tmp_path)]
    assert main([*words.split(), *more]) == 0
    assert list(tmp_path.glob("final/*"))
