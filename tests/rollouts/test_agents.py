import asyncio

import pytest

from bough.config.groups import LimitsConfig
from bough.environments.base import Environment
from bough.errors import InputError
from bough.rollouts.episode import Agent, ExpertAgent, RandomAgent, play
from bough.types import Task, Trajectory
from tests.environments.worlds import Counting, Unsure

TASK = Task(id="a", data={"goal": 3})


def played(agent: Agent, seed: int = 1, environment_class: type[Environment] = Counting) -> Trajectory:
    return asyncio.run(play(environment_class, TASK, agent, id="a#0", seed=seed, limits=LimitsConfig()))[0]


def test_the_expert_knows_how():
    trajectory = played(ExpertAgent())
    assert trajectory.success and [turn.reply.content for turn in trajectory.turns] == ["1", "2", "3"]
    assert all(turn.call is None for turn in trajectory.turns) and trajectory.info["agent"] == "expert"


def test_chance_depends_on_the_seed_alone():
    replies = [[turn.action for turn in played(RandomAgent(), seed).turns] for seed in (1, 1, 2, 3)]
    assert replies[0] == replies[1] and len({tuple(some) for some in replies}) > 1


def test_an_episode_ends_where_the_expert_has_no_advice():
    trajectory = played(ExpertAgent(), environment_class=Unsure)
    assert (trajectory.stop, trajectory.success, trajectory.rewards) == ("no_expert", False, {"outcome": 0.0})
    assert [turn.reply.content for turn in trajectory.turns] == ["1", "2"]


def test_a_world_without_expert_or_choices_says_so():
    class Bare(Counting):
        expert = Environment.expert

        def choices(self) -> list[str]:
            return []

    with pytest.raises(InputError, match="counting has no expert; give a model"):
        played(ExpertAgent(), environment_class=Bare)
    with pytest.raises(InputError, match="does not list its possible actions"):
        played(RandomAgent(), environment_class=Bare)
