"""Rewards whose author made a mistake: the records and the other rewards are unharmed, and the author learns where."""

import asyncio
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bough.environments.registry import find
from bough.environments.rubric import SIGNAL, RewardTimeoutError, Rubric
from bough.errors import InputError
from bough.types import Call, Message, Task, ToolCall, Trajectory, Turn
from tests.environments.records import trajectory, turn


def sleeps(trajectory: Trajectory) -> float:
    time.sleep(60)  # hangs here
    return 1.0


def spins(trajectory: Trajectory) -> float:
    while True:
        with suppress(Exception):
            sum(range(1000))  # hangs here


async def waits(trajectory: Trajectory) -> float:
    await asyncio.sleep(60)  # hangs here
    return 1.0


async def blocks(trajectory: Trajectory) -> float:
    time.sleep(60)  # hangs here
    return 1.0


def waits_for_all(attempts: list[Trajectory]) -> list[float]:
    time.sleep(60)  # hangs here
    return [1.0 for _ in attempts]


HANGING: list[Callable[..., Any]] = [sleeps, spins, waits, blocks, waits_for_all]


@pytest.mark.parametrize("reward", HANGING)
def test_a_reward_that_hangs_ends_the_run_with_its_name_file_and_line(reward: Callable[..., Any]):
    begin, handler, threads = time.monotonic(), signal.getsignal(SIGNAL), threading.active_count()
    with pytest.raises(RewardTimeoutError) as caught:
        Rubric(["outcome", reward], timeout_s=0.3).score_all([trajectory(turn(), success=True)] * 3)
    assert time.monotonic() - begin < 30
    assert signal.getsignal(SIGNAL) is handler and threading.active_count() <= threads
    text = str(caught.value)
    place = r"environments/test_misbehaving\.py:\d+"
    assert re.match(rf"the reward {reward.__name__} took longer than 0\.3 s \(.*{place}\)", text), text
    assert "# hangs here" in text.splitlines()[-1] or reward is spins


def test_each_reward_has_the_whole_time():
    async def slow(trajectory: Trajectory) -> float:
        await asyncio.sleep(0.2)
        return 1.0

    def slower(trajectory: Trajectory) -> float:
        time.sleep(0.2)
        return 1.0

    # All of them take 1.6 s, and each has a second to spare for a machine that is busy.
    records = [trajectory(turn(), id=str(number)) for number in range(7)]
    scored = Rubric([slow, slower], timeout_s=1.2).score_all(records)
    assert [one.rewards["total"] for one in scored] == [2.0] * 7


def test_rewards_run_in_the_main_thread():
    """Libraries that keep time with signals work nowhere else."""

    def threaded(trajectory: Trajectory) -> float:
        return float(threading.current_thread() is threading.main_thread())

    async def awaited(trajectory: Trajectory) -> float:
        return float(threading.current_thread() is threading.main_thread())

    assert Rubric([threaded, awaited]).score(trajectory(turn())).rewards["total"] == 2.0


def exits(trajectory: Trajectory) -> float:
    sys.exit(3)


async def exits_later(trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    sys.exit(3)


class OwnError(BaseException):
    pass


def raises_base(trajectory: Trajectory) -> float:
    raise OwnError("mine")


async def raises_base_later(trajectory: Trajectory) -> float:
    raise OwnError("mine")


def cancels(trajectory: Trajectory) -> float:
    raise asyncio.CancelledError


async def cancels_later(trajectory: Trajectory) -> float:
    raise asyncio.CancelledError


def generates(trajectory: Trajectory) -> Iterator[float]:
    yield 1.0


async def generates_later(trajectory: Trajectory) -> AsyncIterator[float]:
    yield 1.0


def is_a_class(trajectory: Trajectory) -> Any:
    return float


WRONG: list[Callable[..., Any]] = [
    exits, exits_later, raises_base, raises_base_later, cancels, cancels_later, generates, generates_later, is_a_class,
]  # fmt: skip


@pytest.mark.parametrize("reward", WRONG)
def test_whatever_a_reward_raises_or_returns_costs_only_its_own_values(
    reward: Callable[..., Any], caplog: pytest.LogCaptureFixture
):
    rubric = Rubric(["outcome", reward])
    scored = rubric.score_all([trajectory(turn(), success=True)] * 3)
    assert [one.rewards for one in scored] == [{"outcome": 1.0, reward.__name__: None, "total": None}] * 3
    assert rubric.failed == {reward.__name__: 3}
    assert len(caplog.records) == 1 and caplog.text.count("the reward ") == 1, "the author is told, once"


@pytest.mark.parametrize("late", [False, True])
def test_ctrl_c_is_the_users(late: bool):
    def interrupted(trajectory: Trajectory) -> float:
        raise KeyboardInterrupt

    async def interrupted_later(trajectory: Trajectory) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Rubric([interrupted_later if late else interrupted]).score(trajectory(turn()))


@pytest.mark.parametrize(
    "result", [[1.0], [1.0, 2.0, 3.0], b"ab", "ab", {0: 1.0, 1: 2.0}, None, 1.0, iter([1.0, 2.0]), [[1.0], [2.0]]]
)
def test_a_group_whose_result_is_not_one_number_per_attempt_is_not_scored(result: Any):
    def rank(attempts: list[Trajectory]) -> Any:
        return result

    scored = Rubric([rank]).score_all([trajectory(turn(), id=name) for name in "ab"])
    assert [one.rewards["total"] for one in scored] == [None, None]


def recorded() -> Trajectory:
    reply = Message(role="assistant", content="x", tool_calls=[ToolCall(name="f", arguments={"a": [1]})])
    call = Call(prompt_ids=[1, 2], completion_ids=[3], logprobs=[-1.0])
    one = Turn(reply=reply, call=call, observation=[Message(role="user", content="y")])
    return Trajectory(
        id="a", task=Task(id="t", data={"secret": [1]}), start=[Message(role="user", content="Go.")], turns=[one],
        tools=[{"function": {"name": "f"}}], rewards={"outcome": 0.0}, success=False, info={"agent": "m"},
    )  # fmt: skip


def destroy(trajectory: Trajectory) -> float:
    call = trajectory.turns[0].call
    assert call is not None and call.logprobs is not None
    call.prompt_ids.clear()
    call.completion_ids.append(7)
    call.logprobs[0] = 0.0
    trajectory.turns[0].reply.tool_calls[0].arguments["a"].append(2)  # type: ignore[union-attr]
    trajectory.turns[0].observation.clear()
    trajectory.turns.clear()
    trajectory.start.clear()
    trajectory.rewards["outcome"] = 800.0
    trajectory.info["agent"] = "x"
    trajectory.task.data["secret"].append(2)  # type: ignore[union-attr]
    trajectory.tools[0]["function"]["name"] = "g"  # type: ignore[index,call-overload]
    return 1.0


def destroy_all(attempts: list[Trajectory]) -> list[float]:
    count = len(attempts)
    for one in attempts:
        destroy(one)
    attempts.clear()
    return [1.0] * count


@pytest.mark.parametrize("reward", [destroy, destroy_all])
def test_a_reward_cannot_change_the_record_nor_what_other_rewards_see(reward: Callable[..., Any]):
    record = recorded()
    [scored] = Rubric([reward, "outcome"]).score_all([record])
    assert record == recorded()
    assert scored.rewards == {"outcome": 0.0, reward.__name__: 1.0, "total": 1.0}
    assert scored.model_copy(update={"rewards": record.rewards}) == recorded()


def test_what_is_not_a_function_of_a_trajectory_is_refused_by_name():
    with pytest.raises(InputError, match="the reward max is not a function of a trajectory"):
        Rubric({"builtins:max": 1.0})


def test_a_file_that_exits_while_it_is_loaded_is_an_error_with_its_line(tmp_path: Path):
    file = tmp_path / "script.py"
    file.write_text("import sys\n\nsys.exit(0)\n")
    with pytest.raises(InputError, match=r"(?s)cannot be loaded: .*script\.py raised SystemExit: 0 \(.*script\.py:3\)"):
        Rubric({f"{file}:reward": 1.0})
    with pytest.raises(InputError, match=r"(?s)cannot be loaded: .*script\.py raised SystemExit: 0 \(.*script\.py:3\)"):
        find(f"{file}:Environment")
