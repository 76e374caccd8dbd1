import json
from pathlib import Path
from typing import Any

import pytest

from bough.environments.base import digest
from bough.errors import InputError
from bough.evaluation.results import Lost, Outcome, Results, by_task, means
from bough.types import Message, Task, Trajectory, Turn
from bough.worlds.household.mistakes import HouseholdRules, Locations
from tests.evaluation.samples import outcomes, result

REPLY = Message(role="assistant", content="go")


def trajectory(**more: object) -> Trajectory:
    task = Task(id="room#3", environment="household", seed=7, data={"type": "pick_two", "n": 1})
    turns = [Turn(reply=REPLY), Turn(reply=REPLY, error="malformed"), Turn(reply=REPLY, error="malformed")]
    values = {
        "id": "room#3#2", "task": task, "start": [Message(role="user", content="Go.")], "turns": turns,
        "rewards": {"outcome": 0.5}, "success": False, "stop": "loop",
        "info": {"prompt_tokens": 30, "completion_tokens": 6},
    }  # fmt: skip
    return Trajectory.model_validate(values | more)


def test_an_episode_becomes_a_row():
    found = Outcome.of(trajectory())
    assert (found.task, found.attempt, found.type) == ("room#3", 2, "pick_two")
    assert (found.success, found.reward, found.stop) == (False, 0.5, "loop")
    assert (found.turns, found.prompt_tokens, found.completion_tokens) == (3, 30, 6)
    assert found.errors == {"malformed": 2}
    assert Outcome(task="t", digest="d", success=True).attempt == Outcome.of(trajectory(id="t#0")).attempt == 0


def test_kinds_of_errors_are_in_the_order_of_their_names():
    """Whichever came first: result files of the same errors read the same."""
    kinds = ["unknown_action", "malformed", "unknown_action"]
    found = Outcome.of(trajectory(turns=[Turn(reply=REPLY, error=kind) for kind in kinds]))
    assert list(found.errors.items()) == [("malformed", 1), ("unknown_action", 2)]


def test_mistakes_that_rules_see_are_counted_once_a_turn():
    def turn(action: str, answer: str) -> Turn:
        said = [Message(role="user", content=answer)]
        return Turn(reply=REPLY, action=action, observation=said)

    start = [Message(role="user", content="You see a sinkbasin 1, and a fridge 1.\n\nYour task is to: find an apple.")]
    sink = turn("go to sinkbasin 1", "On the sinkbasin 1, you see nothing.")
    turns = [sink, sink, turn("open fridge 1", "It is open."), turn("close fridge 1", "It is closed.")]
    turns.append(turn("task succeeded", "Nothing happens."))
    rules = HouseholdRules(Locations({"apple": frozenset({"fridge"})}))
    found = Outcome.of(trajectory(start=start, turns=turns, stop="premature_success"), rules)
    assert found.mistakes == {"implausible_location": 1, "loop": 1, "premature_success": 1, "wasted_step": 1}
    none = dict.fromkeys(["implausible_location", "loop", "premature_success", "wasted_step"], 0)
    assert Outcome.of(trajectory(start=start, turns=turns[1:1]), rules).mistakes == none
    assert Outcome.of(trajectory(start=start, turns=turns)).mistakes == {"loop": 1, "premature_success": 0}


def test_what_is_not_known_stays_unknown():
    found = Outcome.of(trajectory(success=None, rewards={}, id="other", info={}))
    assert found.success is None and found.reward is None and (found.attempt, found.prompt_tokens) == (0, 0)
    assert found.completion_tokens == 0


def test_a_lost_episode_becomes_a_row_with_either_end_and_nothing_played():
    empty = {"attempt": 0, "turns": 0, "prompt_tokens": 0, "completion_tokens": 0}
    for success in (True, False):
        row = Outcome(task="t", digest="", success=success, **empty)
        assert Lost(task="t", why="the browser died").outcome(success) == row
    assert Lost(task="t", digest="d", attempt=2, why="").outcome(True).digest == "d"


def test_a_page_is_a_type_and_a_task_may_have_none():
    assert Outcome.of(trajectory(task=Task(id="t", data={"page": "login-user"}))).type == "login-user"
    assert Outcome.of(trajectory(task=Task(id="t"))).type is None


def test_a_family_is_named_in_the_tasks_data():
    for data, family in (({"family": "cups"}, "cups"), ({"family": 3}, "3"), ({"family": True}, None), ({}, None)):
        assert Outcome.of(trajectory(task=Task(id="t", data=data))).family == family


def test_starts_are_told_apart_by_what_was_seen():
    one = Outcome.of(trajectory())
    assert one.start == Outcome.of(trajectory(id="room#4#0", task=Task(id="room#4"), success=True)).start
    assert one.start != Outcome.of(trajectory(start=[Message(role="user", content="Stay.")])).start


def test_tasks_of_one_name_are_told_apart_by_their_content():
    task = Task(id="t", environment="web", seed=1, data={"page": "a"})
    assert digest(task) == digest(task.model_copy(update={"id": "other"}))
    for change in ({"seed": 2}, {"data": {"page": "b"}}, {"environment": "household"}):
        assert digest(task) != digest(task.model_copy(update=change))


def test_tasks_of_one_family_count_as_one_task():
    rows = [row.model_copy(update={"family": "f" if row.task != "t2" else None}) for row in outcomes("11 00 1")]
    values = by_task(rows, lambda outcome: outcome.success)
    assert means(values) == [0.5, 1.0]
    lost = Lost(task="t1", family="f", why="the browser died").outcome(True)
    assert means(by_task([*rows, lost], lambda outcome: outcome.success)) == [0.6, 1.0]


def results(**more: Any) -> Results:
    return Results(environment="counting", seed=0, models=[result("a", "1 0 ?", reward=0.5, stop="done")], **more)


def test_what_is_written_is_read_again(tmp_path: Path):
    written = results(options={"n": 3}, attempts=2, stop_width=0.1, reports={"a": {"tasks": 3}})
    written.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == Results.read(tmp_path) == written
    assert json.loads((tmp_path / "results.json").read_text())["bough"] == "evaluation/1"


def test_lost_episodes_can_be_taken_for_successes_or_failures():
    model = result("a", "1 x 0")
    assert [row.success for row in model.assuming(True).outcomes] == [True, False, True]
    assert [(row.task, row.digest) for row in model.assuming(False).outcomes][-1] == ("t1", "d1")
    assert model.assuming(False).lost == [] and len(model.outcomes) == 2, "the result itself is as it was"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "these do not"),
        ('{"bough": "evaluation/2"}', "these do not"),
        ('{"bough": "evaluation/1", "environment": "x", "seed": 0, "models": [{"name": "a"}]}', "models.0.outcomes"),
    ],
)
def test_what_is_no_result_file_is_named(text: str, complaint: str, tmp_path: Path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError) as caught:
        Results.read(tmp_path / "a.json")
    assert complaint in str(caught.value) and "a.json" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"results\.json: there is no such file"):
        Results.read(tmp_path)
