import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from bough.environments.rewards import bounded
from bough.environments.rubric import REWARDS, Rubric, find, parameters, score
from bough.errors import InputError, RewardRangeError
from bough.types import Task, Trajectory
from tests.environments.records import trajectory, turn


def broken(trajectory: Trajectory) -> float:
    raise ZeroDivisionError("no turns")


def test_each_reward_goes_by_its_name_and_the_total_is_their_weighted_sum():
    rubric = Rubric({"outcome": 1.0, "tool_call": 2.0, "overlong": {"weight": 0.5, "max_length": 10, "buffer": 4}})
    wrong = trajectory(turn(tool=True, tokens=9), success=False, rewards={"outcome": -1.0, "kept": 7.0})
    scored = rubric.score(wrong)
    assert scored.rewards == pytest.approx(
        {"outcome": -1.0, "kept": 7.0, "tool_call": 0.1, "overlong": -0.75, "total": -1.0 + 0.2 - 0.375}
    )
    assert wrong.rewards == {"outcome": -1.0, "kept": 7.0}, "the record itself is never changed"
    assert rubric.failed == {}


def test_scoring_twice_gives_the_same_and_a_list_weighs_each_1():
    rubric = Rubric({"outcome": {"failure": -1}, "tool_call": {"failure": -1}})
    once = rubric.score(trajectory(turn(tool=True), success=False))
    assert once.rewards["total"] == pytest.approx(-0.9) and rubric.score(once) == once
    scored = Rubric([judged, "outcome"]).score(trajectory(turn(), turn(), success=True))
    assert scored.rewards == {"judged": 2.0, "outcome": 1.0, "total": 3.0}


@bounded(0.0, 1.0)
def generous(trajectory: Trajectory, *, bonus: float = 0.0) -> float:
    return 1.0 + bonus


def test_a_reward_outside_its_declared_range_stops_the_run():
    assert Rubric({f"{__name__}:generous": 1.0}).score(trajectory(success=True)).rewards["generous"] == 1.0
    rubric = Rubric({"outcome": 1.0, f"{__name__}:generous": {"bonus": 799.0}})
    said = "the reward generous gave the reward 800 for task .*; its declared range is 0 to 1"
    with pytest.raises(RewardRangeError, match=said):
        rubric.score(trajectory(success=True))
    with pytest.raises(RewardRangeError, match="the reward progress"):
        Rubric({"progress": 1.0}).score(trajectory(turn(progress=5.0), success=False))


def test_a_reward_without_a_value_is_counted_unless_its_weight_is_0():
    rubric = Rubric({"progress": 1.0})
    assert rubric.score(trajectory(turn(), success=False)).rewards == {"progress": None, "total": None}
    assert rubric.failed == {"progress": 1}
    rubric = Rubric({"outcome": 1.0, "progress": 0.0})
    assert rubric.score(trajectory(turn(), success=False)).rewards == {"outcome": 0.0, "progress": None, "total": 0.0}


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ({}, "the rewards are none"),
        ({"outcom": 1.0}, "there is no reward 'outcom'; did you mean outcome? (your own: module:function"),
        ({"overlong": {"max_lenght": 3}}, "max_lenght is not a setting; did you mean max_length?"),
        ({"outcome": 1.0, "tests.environments.outcomes:outcome": 1.0}, "cannot be loaded"),
        ({"outcome": 1.0, "bough.environments.rewards:outcome": 1.0}, "each needs a name of its own"),
    ],
)
def test_a_rubric_that_makes_no_sense_is_refused(rewards: dict[str, float], said: str):
    with pytest.raises(InputError) as error:
        Rubric(rewards)
    assert said in str(error.value)


def rank(attempts: list[Trajectory]) -> list[float]:
    """The share of the group that is longer."""
    return [sum(len(b.turns) > len(a.turns) for b in attempts) / len(attempts) for a in attempts]


async def judged(trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    return float(len(trajectory.turns))


def attempts_at(*tasks: str) -> list[Trajectory]:
    return [
        trajectory(*[turn()] * length, id=f"{task}{length}", task=Task(id=task)) for length, task in enumerate(tasks, 1)
    ]


def test_a_reward_of_a_group_compares_the_attempts_at_each_task():
    scored = Rubric({rank: 2.0}).score_all(attempts_at("a", "b", "a", "a"))
    # Of task a the attempts have 1, 3 and 4 turns; of task b there is one.
    assert [one.rewards["rank"] for one in scored] == pytest.approx([2 / 3, 0, 1 / 3, 0])
    assert [one.rewards["total"] for one in scored] == pytest.approx([4 / 3, 0, 2 / 3, 0])


def test_a_reward_of_a_group_cannot_score_one_attempt_alone():
    with pytest.raises(InputError, match="the reward rank compares attempts; score them together"):
        Rubric([rank]).score(trajectory(turn()))


def test_async_rewards_run_at_the_same_time_also_inside_a_running_loop():
    running = most = 0

    async def slow(trajectory: Trajectory) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 1.0

    async def notebook() -> list[Trajectory]:
        return Rubric([slow]).score_all(attempts_at(*"abcd"))

    assert [one.rewards["slow"] for one in asyncio.run(notebook())] == [1.0] * 4 and most == 4


async def refuses(attempts: list[Trajectory]) -> list[float]:
    raise RuntimeError("the judge is away")


def test_a_group_that_cannot_be_scored_counts_for_each_of_its_attempts():
    rubric = Rubric({refuses: 1.0, "outcome": 0.0})
    scored = rubric.score_all(attempts_at("a", "a", "b"))
    assert rubric.failed == {"refuses": 3, "outcome": 3} and scored[0].rewards["total"] is None
    assert "the judge is away" in rubric.why["refuses"]


def test_an_error_names_the_line_in_the_rewards_own_file(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("import json\n\ndef parsed(trajectory):\n    return json.loads('{')\n")
    rubric = Rubric({f"{file}:parsed": 1.0, f"{__name__}:broken": 1.0})
    rubric.score(trajectory())
    assert f"({tmp_path.name}/mine.py:4)" in rubric.why["parsed"] and "JSONDecodeError" in rubric.why["parsed"]
    assert re.search(
        r"broken raised ZeroDivisionError: no turns \(.*environments/test_rubric.py:\d+\)", rubric.why["broken"]
    )


@pytest.mark.parametrize("value", [10**400, 10**5000, float("inf"), "good"], ids=["large", "huge", "inf", "text"])
def test_what_is_not_a_finite_number_is_not_a_reward(value: Any):
    def odd(_: Trajectory) -> Any:
        return value

    rubric = Rubric([odd])
    assert rubric.score(trajectory(success=True)).rewards["total"] is None and "finite number" in rubric.why["odd"]


def test_a_total_that_is_not_finite_is_not_known():
    def large(_: Trajectory) -> float:
        return 1e308

    scored = Rubric({large: 100.0, "outcome": 1.0}).score(trajectory(success=True))
    assert scored.rewards == {"large": 1e308, "outcome": 1.0, "total": None}


@pytest.mark.parametrize(
    ("rewards", "success", "name", "value"),
    [
        ({"a": 1.0, "total": 2.0}, None, "a", 1.0),
        ({"a": 1.0}, None, "b", None),
        ({"outcome": 1.0, "reward": 3.0, "total": 2.0}, None, None, 2.0),
        ({"outcome": 1.0, "reward": 3.0}, None, None, 3.0),
        ({"brevity": 0.5}, None, None, 0.5),
        ({"brevity": 0.5, "outcome": 1.0}, None, None, 1.0),
        ({"outcome": 1.0, "total": None}, True, None, None),  # not replaced by another
        ({}, True, None, 1.0),
        ({}, False, None, 0.0),
        ({}, None, None, None),
        ({"a": 1.0, "b": 2.0}, True, None, None),
    ],
)
def test_one_number_compares_trajectories(rewards: Any, success: bool | None, name: str | None, value: float | None):
    assert score(trajectory(rewards=rewards, success=success), name) == value


def always(trajectory: object) -> float:
    return 0.25


def test_ours_go_by_their_names():
    ours = {"outcome", "progress", "steps", "format", "mistakes", "tool_call", "overlong"}
    assert set(REWARDS) == ours | {"judge"}
    assert all(find(name) is reward for name, reward in REWARDS.items())
    assert all(REWARDS[name].__name__ == name for name in ours)


def test_a_function_of_a_module_or_of_a_file(tmp_path: Path):
    assert find(f"{__name__}:always") is always
    (tmp_path / "mine.py").write_text("def brevity(t, *, base=2):\n    return 1 / base ** len(t.turns)\n")
    brevity = find(f"{tmp_path / 'mine.py'}:brevity")
    assert brevity(trajectory()) == 1.0 and parameters(brevity) == ["base"]
