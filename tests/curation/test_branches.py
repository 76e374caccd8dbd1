import asyncio
from typing import ClassVar

import pytest

from bough.config.groups import LimitsConfig
from bough.curation.states import Branch, BranchAgent, at_round
from bough.engines.base import Answer
from bough.environments.base import EnvironmentFailedError, Observation
from bough.environments.replay import ReplayError
from bough.rollouts.agents import ExpertAgent
from bough.rollouts.episode import play
from bough.types import Message, Task, Trajectory
from tests.environments.worlds import Counting
from tests.rollouts.players import Script

TASK = Task(id="t", data={"goal": 4})


def recorded(*replies: str) -> Trajectory:
    return asyncio.run(play(Counting, TASK, Script(list(replies)), id="a", seed=0, limits=LimitsConfig(max_turns=3)))[0]


def answer(text: str) -> Answer:
    return Answer(Message(role="assistant", content=text), None, "stop")


def branched(trajectory: Trajectory, at: int, reply: str) -> tuple[Trajectory, Script]:
    then = Script(["3", "4"])
    agent = BranchAgent(then, {"b": Branch(trajectory, at, answer(reply))})
    return asyncio.run(play(Counting, TASK, agent, id="b", seed=5, limits=LimitsConfig()))[0], then


def test_a_branch_says_what_was_said_then_the_other_reply_then_what_the_agent_says():
    first = recorded("1", "9", "9")
    played, then = branched(first, 1, "2")
    assert [turn.reply.content for turn in played.turns] == ["1", "2", "3", "4"] and played.success
    assert played.turns[0] == first.turns[0], "with the exact tokens of then"
    assert then.seeds == [5] and len(then.seen) == 2 and then.closed == 1
    assert [message.content for message in then.seen[0]][2:] == ["1", "Yes.", "2", "Yes."]


def test_a_branch_can_begin_at_the_first_round():
    assert [turn.reply.content for turn in branched(recorded("9"), 0, "1")[0].turns][:2] == ["1", "3"]


def test_a_world_that_answers_differently_is_noticed():
    first = recorded("1", "9", "9")
    said = [Message(role="user", content="Well done.")]
    turns = [first.turns[0].model_copy(update={"observation": said}), *first.turns[1:]]
    changed = first.model_copy(update={"turns": turns})
    with pytest.raises(ReplayError, match="does not answer as it did before turn 2"):
        branched(changed, 1, "2")


class Broken(Counting):
    """Raises what it likes."""

    made: list["Broken"] = []

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.made.append(self)

    async def step(self, reply: str) -> Observation:
        raise ZeroDivisionError("oops")


def test_the_environment_at_a_round_is_closed_whatever_happens():
    trajectory = recorded("1", "2", "9")

    class Kept(Counting):
        made: ClassVar[list[Counting]] = []

        def __init__(self, task: Task) -> None:
            super().__init__(task)
            self.made.append(self)

    async def visit(kind: type[Counting], at: int) -> None:
        async with at_round(kind, trajectory, at) as environment:
            assert await environment.expert() == str(at + 1)
            if kind is Broken:
                await environment.step("1")

    asyncio.run(visit(Kept, 2))
    assert [world.closed for world in Kept.made] == [1]
    with pytest.raises(EnvironmentFailedError, match="ZeroDivisionError: oops"):
        asyncio.run(visit(Broken, 0))
    assert Broken.made[-1].closed == 1
    with pytest.raises(EnvironmentFailedError, match="oops"):
        asyncio.run(visit(Broken, 1))


def test_a_branch_agent_goes_by_its_agents_name():
    assert BranchAgent(ExpertAgent(), {}).name == "expert"
