import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bough.config.groups import LimitsConfig
from bough.engines.base import EngineError
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.errors import RewardRangeError
from bough.rollouts.collect import Attempt, LocalRunner, collect
from bough.rollouts.episode import ExpertAgent, play
from bough.types import Task, Trajectory
from tests.environments.worlds import Counting
from tests.rollouts.players import BROKEN, FULL, Script

TASK = Task(id="a", data={"goal": 3})


def played(
    *replies: Any, environment_class: type[Environment] = Counting, script: Script | None = None, **limits: Any
) -> Trajectory:
    script = script or Script(list(replies))
    trajectory, _ = asyncio.run(play(environment_class, TASK, script, id="a#0", seed=1, limits=LimitsConfig(**limits)))
    return trajectory


def test_an_episode_is_kept_as_it_happened():
    script = Script(["1", "x", "2", "3"])
    trajectory = played(script=script)
    assert [turn.reply.content for turn in trajectory.turns] == ["1", "x", "2", "3"]
    assert [turn.action for turn in trajectory.turns] == ["1", None, "2", "3"]
    assert [turn.error for turn in trajectory.turns] == [None, "malformed", None, None]
    assert [turn.progress for turn in trajectory.turns] == [1 / 3, None, 2 / 3, 1.0]
    assert [turn.observation[0].content for turn in trajectory.turns] == ["Yes.", "A number, please.", "Yes.", "Done."]
    assert trajectory.turns[0].call is not None and trajectory.turns[0].call.completion_ids == [4, 5]
    assert (trajectory.success, trajectory.stop, trajectory.rewards) == (True, "done", {"outcome": 1.0})
    assert trajectory.info == {"agent": "script", "prompt_tokens": 12, "completion_tokens": 8}
    assert script.closed == 1


class Named(Counting):
    """Names its state: what was counted to."""

    async def start(self) -> Observation:
        return replace(await super().start(), state="0")

    async def step(self, reply: str) -> Observation:
        found = await super().step(reply)
        return replace(found, state=found.action)


def test_a_turn_has_the_state_that_it_was_answered_in():
    assert [turn.state for turn in played("1", "x", "2", "3", environment_class=Named).turns] == ["0", "1", None, "2"]
    assert [turn.state for turn in played("1", "2", "3").turns] == [None, None, None]


def test_the_agent_sees_everything_so_far():
    script = Script(["1", "2", "3"])
    played(script=script)
    assert [message.content for message in script.seen[2]] == ["Count.", "To 3.", "1", "Yes.", "2", "Yes."]
    assert script.seen[0][1].hint == " Begin with 1."


@pytest.mark.parametrize(
    ("replies", "limits", "stop", "turns"),
    [
        (["1", "x", "1", "x", "1", "x", "1"], {"max_errors": 0}, "max_turns", 6),
        (["1", "x", "1", "x", "1", "x", "1"], {"max_errors": 0, "max_turns": 4}, "max_turns", 4),
        (["7"], {}, "loop", 3),
        (["7"], {"max_repeats": 2}, "loop", 2),
        (["7"], {"max_repeats": 0, "max_errors": 4}, "invalid_action", 4),
        (["1", "7", "8", "x"], {"max_errors": 3}, "malformed", 4),
        (["1", FULL], {}, "context_full", 1),
    ],
)
def test_every_way_to_get_nowhere_has_its_stop(replies: list[Any], limits: Any, stop: str, turns: int):
    trajectory = played(*replies, **limits)
    assert (trajectory.stop, len(trajectory.turns), trajectory.success) == (stop, turns, False)
    assert trajectory.rewards == {"outcome": 0.0}


def test_the_worlds_own_stop_and_other_results_are_kept():
    class Corridor(Counting):
        async def step(self, reply: str) -> Observation:
            self.said += 1
            return Observation.say(f"Room {self.said}.", action=reply)

    assert played("on", environment_class=Corridor).stop == "max_turns"

    class Claim(Counting):
        async def step(self, reply: str) -> Observation:
            return Observation.end(success=False, stop="premature_success")

    trajectory = played("task succeeded", environment_class=Claim)
    assert (trajectory.stop, trajectory.success) == ("premature_success", False)


def test_an_episode_that_takes_too_long_is_stopped():
    class Slow(Counting):
        async def step(self, reply: str) -> Observation:
            await asyncio.sleep(0.02)
            self.said += 1
            return Observation.say(str(self.said))

    trajectory = played("1", environment_class=Slow, episode_timeout_s=0.05)
    assert (trajectory.stop, trajectory.success) == ("episode_timeout", False)


def test_a_broken_engine_raises_and_everything_is_closed():
    worlds = []

    class Kept(Counting):
        def __init__(self, task: Task) -> None:
            super().__init__(task)
            worlds.append(self)

    script = Script(["1", BROKEN])
    with pytest.raises(EngineError):
        played(script=script, environment_class=Kept)
    assert script.closed == 1 and [world.closed for world in worlds] == [1]


def test_an_engine_that_gives_no_answer_in_time_is_no_failure_of_the_agent():
    class Late(Script):
        def enter(self, *_: Any, **__: Any) -> Any:
            raise TimeoutError("gone")

    for script in (Script(["1", TimeoutError("gone")]), Late([])):
        with pytest.raises(EngineError, match="the answer raised TimeoutError: gone"):
            played(script=script)


@pytest.mark.parametrize("reward", [800.0, -0.25])
def test_a_reward_outside_the_declared_range_stops_the_run(reward: float):
    class Generous(Counting):
        name = "generous"
        reward_range = (0.0, 1.0)

        async def step(self, reply: str) -> Observation:
            return Observation.end(success=True, reward=reward)

    said = f"environment generous gave the reward {reward:g} for task {TASK.id}; its declared range is 0 to 1"
    with pytest.raises(RewardRangeError, match=said) as caught:
        played("1", environment_class=Generous)
    assert not isinstance(caught.value, EnvironmentFailedError), "it is not played again"
    attempt = Attempt("a#0", TASK, 0)
    with pytest.raises(RewardRangeError):
        asyncio.run(
            collect(LocalRunner.of(Generous, ExpertAgent(), LimitsConfig()), [attempt], lambda *_: None, retries=2)
        )


@pytest.mark.parametrize("stop", [None, "aborted"])
def test_an_end_whose_outcome_the_world_does_not_know_stays_unknown(stop: str | None):
    class Silent(Counting):
        async def step(self, reply: str) -> Observation:
            return Observation.end("Over.", success=None, stop=stop)

    trajectory = played("1", environment_class=Silent)
    assert (trajectory.success, trajectory.stop, trajectory.rewards) == (None, stop or "done", {"outcome": None})
