"""What is said of groups that give no training signal."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from bough.online.gather import ENOUGH, FlatGroups, distances, kind_of
from bough.training.method import GroupExample
from bough.types import Call, Group, Message, Task, ToolCall, Trajectory, Turn

FAILED, SUCCEEDED = "all attempts failed", "all attempts succeeded"


def group(*attempts: tuple[str, bool | None]) -> Group:
    task = Task(id="t")
    return Group(
        task=task,
        attempts=[
            Trajectory(
                id=f"t#{n}", task=task, start=[Message(role="user", content="Hi")], success=success,
                turns=[Turn(reply=Message(role="assistant", content=text))],
            )
            for n, (text, success) in enumerate(attempts)
        ],
    )  # fmt: skip


def test_groups_are_told_apart_by_why_their_rewards_are_equal():
    assert kind_of(group(("a", False), ("a", False))) == "same", "a higher temperature helps, whatever the outcome"
    assert kind_of(group(("a", False), ("b", False))) == "failed"
    assert kind_of(group(("a", True), ("b", True))) == "succeeded"
    assert kind_of(group(("a", True), ("b", False))) == "equal", "the reward is not the outcome"


def test_attempts_with_other_tool_calls_are_not_the_same():
    calls = group(("", False), ("", False))
    for attempt, city in zip(calls.attempts, ("Rome", "Oslo"), strict=True):
        attempt.turns[0].reply.tool_calls.append(ToolCall(name="weather", arguments={"city": city}))
    assert kind_of(calls) == "failed"


def test_the_most_frequent_reason_comes_first_with_its_count():
    found = FlatGroups()
    for attempts in ([("a", True), ("b", True)], [("a", False), ("b", False)], [("a", False), ("c", False)]):
        found.note(group(*attempts), "zero_variance")
    assert (
        found.advice().startswith(f": in 2 of them {FAILED} (try ")
        and f"; in 1 of them {SUCCEEDED} (" in found.advice()
    )


def test_a_warning_comes_once_and_only_if_most_groups_teach_nothing(caplog: pytest.LogCaptureFixture):
    found, one = FlatGroups(), group(("a", False), ("b", False))
    for _ in range(ENOUGH // 2):
        found.note(one, "zero_variance")
        found.note(one, "")
    found.warn()
    assert not caplog.records, "half of them is not most"
    found.note(one, "too_few_scored")
    found.warn()
    assert not caplog.records, "other reasons need other advice"
    for _ in range(2):
        found.note(one, "zero_variance")
        found.warn()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{ENOUGH // 2 + 2} of {ENOUGH + 3} groups have zero variance: in 10 of them {FAILED}" in record.getMessage()


class Policy:
    """Says the same of every token, and something else as its reference."""

    has_adapter = True

    def __init__(self) -> None:
        self.says, self.num_asked = -1.0, 0

    def logprobs(self, calls: list[Call]) -> list[torch.Tensor]:
        self.num_asked += 1
        return [torch.full((len(call.completion_ids),), self.says) for call in calls]

    @contextmanager
    def reference(self) -> Any:
        self.says = -3.0
        yield
        self.says = -1.0


def sampled(number: int) -> Call:
    return Call(prompt_ids=[1, 2], completion_ids=[number, 9], logprobs=[-2.0, -2.0])


def group_of(*calls: Call) -> Group:
    def attempt(number: int, call: Call) -> Trajectory:
        turn = Turn(reply=Message(role="assistant", content="x"), call=call)
        return Trajectory(id=f"t#{number}", task=Task(id="t"), start=[Message(role="user", content="?")], turns=[turn])

    return Group(task=Task(id="t"), attempts=[attempt(number, call) for number, call in enumerate(calls)])


def example(*calls: Call, logprob: float | None = None) -> GroupExample:
    old = () if logprob is None else tuple(torch.full((2,), logprob) for _ in calls)
    return GroupExample(calls=list(calls), old_logprobs=old)


@pytest.mark.parametrize(
    "examples",
    [
        [example(sampled(3), sampled(4))],
        [example(sampled(3), logprob=-1.5)],
    ],
    ids=["no log-probabilities", "a call is missing"],
)
def test_what_the_examples_do_not_have_is_computed(examples: list[GroupExample]):
    policy = Policy()
    found = distances(policy, [group_of(sampled(3), sampled(4))], examples)
    assert policy.num_asked == 2
    assert found["entropy"] == 1.0 and found["logprob_gap_max"] == 1.0
