from contextlib import contextmanager
from typing import Any

import pytest
import torch

from bough.online.gather import distances
from bough.online.method import GroupExample
from bough.types import Call, Group, Message, Task, Trajectory, Turn


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


def sampled(number: int, temperature: float = 1.0) -> Call:
    return Call(prompt_ids=[1, 2], completion_ids=[number, 9], logprobs=[-2.0, -2.0], temperature=temperature)


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
        [example(sampled(3), sampled(4, temperature=2.0), logprob=-1.5)],
    ],
    ids=["no log-probabilities", "a call is missing", "another temperature"],
)
def test_what_the_examples_do_not_have_is_computed(examples: list[GroupExample]):
    policy = Policy()
    found = distances(policy, [group_of(sampled(3), sampled(4))], examples)
    assert policy.num_asked == 2
    assert found["entropy"] == 1.0 and found["logprob_gap_max"] == 1.0
