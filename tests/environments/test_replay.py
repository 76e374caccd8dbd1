import asyncio
from contextlib import aclosing

import pytest

from bough.environments.base import Environment
from bough.environments.replay import ReplayError, replay, rounds
from bough.types import Message, Task, Trajectory, Turn
from tests.environments.worlds import Counting


def said(content: str) -> list[Message]:
    return [Message(role="user", content=content)]


def recorded(*rounds: tuple[str, str]) -> Trajectory:
    start = [Message(role="system", content="Count."), Message(role="user", content="To 3.", hint=" Begin with 1.")]
    turns = [Turn(reply=Message(role="assistant", content=reply), observation=said(text)) for reply, text in rounds]
    return Trajectory(id="t", task=Task(id="a", data={"goal": 3}), start=start, turns=turns)


def back(
    trajectory: Trajectory, turns: int | None = None, environment_class: type[Environment] = Counting
) -> Environment:
    return asyncio.run(replay(environment_class, trajectory, turns))


def test_an_environment_comes_back_to_any_round():
    trajectory = recorded(("1", "Yes."), ("x", "A number, please."), ("2", "Yes."), ("3", "Done."))
    for turns, said_so_far in [(0, 0), (1, 1), (2, 1), (3, 2), (None, 3)]:
        world = back(trajectory, turns)
        assert isinstance(world, Counting) and world.said == said_so_far and world.closed == 0


def test_the_first_difference_is_named():
    with pytest.raises(
        ReplayError, match=r"t: turn 2 differs in the content of message 0: recorded 'Yes.', now 'A number, please.'"
    ):
        back(recorded(("1", "Yes."), ("x", "Yes."), ("9", "Yes.")))


def test_an_episode_that_ends_too_early_is_an_error():
    with pytest.raises(ReplayError, match="the episode ends after turn 3; 4 were recorded"):
        back(recorded(("1", "Yes."), ("2", "Yes."), ("3", "Done."), ("4", "No.")))


def test_a_failed_replay_closes_its_environment():
    worlds = []

    class Kept(Counting):
        def __init__(self, task: Task) -> None:
            super().__init__(task)
            worlds.append(self)

    with pytest.raises(ReplayError):
        back(recorded(("9", "Yes.")), environment_class=Kept)
    assert [world.closed for world in worlds] == [1]


def walked(trajectory: Trajectory, until: int = 9) -> tuple[list[tuple[int, int]], list[Counting]]:
    """The rounds with how far the world had counted by then, and the worlds that were made."""
    made: list[Counting] = []

    def make(task: Task) -> Counting:
        made.append(Counting(task))
        return made[-1]

    async def walk() -> list[tuple[int, int]]:
        found = []
        async with aclosing(rounds(make, trajectory)) as states:
            async for at, world in states:
                found.append((at, world.said))
                if at == until:
                    break
        return found

    return asyncio.run(walk()), made


def test_one_replay_passes_through_every_round():
    trajectory = recorded(("1", "Yes."), ("x", "A number, please."), ("2", "Yes."), ("3", "Done."))
    found, [world] = walked(trajectory)
    assert found == [(0, 0), (1, 1), (2, 1), (3, 2)] and world.closed == 1
    found, [world] = walked(trajectory, until=1)
    assert found == [(0, 0), (1, 1)] and world.closed == 1


def test_a_walk_stops_where_the_episode_differs_or_ends():
    with pytest.raises(ReplayError, match="turn 1 differs"):
        walked(recorded(("1", "No."), ("2", "Yes.")))
    with pytest.raises(ReplayError, match="ends after turn 3; more were recorded"):
        walked(recorded(("1", "Yes."), ("2", "Yes."), ("3", "Done."), ("4", "Yes.")))
