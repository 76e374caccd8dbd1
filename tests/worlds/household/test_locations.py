import json
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.types import Trajectory
from bough.worlds.household.mistakes import Locations
from tests.curation.records import episode, turn


def visit(task: str, *looks: tuple[str, str], success: bool = True) -> Trajectory:
    return episode(task, *(turn(action, seen) for action, seen in looks), task=task, success=success).trajectory


def shelves(count: int, seen: str, first: int = 0) -> list[Trajectory]:
    return [
        visit(f"t{number}", ("go to shelf 1", f"You arrive at shelf 1. On the shelf 1, you see {seen}."))
        for number in range(first, first + count)
    ]


def test_a_place_is_implausible_once_enough_of_its_kind_were_seen_without_the_thing():
    apple = visit(
        "k", ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1, and a egg 2.")
    )
    # 18 empty shelves: 1/20 is not below 0.05; 19: 1/21 is.
    assert not Locations.learn([apple, *shelves(18, "nothing")], rare=0.05).implausible("apple", "shelf")
    learnt = Locations.learn([apple, *shelves(19, "a vase 1")], rare=0.05)
    assert learnt.implausible("apple", "shelf") and not learnt.implausible("apple", "fridge")
    assert not learnt.implausible("vase", "shelf") and learnt.things == {"apple", "egg", "vase"}


def test_a_thing_that_lay_there_once_in_many_times_is_rare_there():
    # 2/41 is below 0.05, 2/40 is not.
    once = shelves(1, "a apple 1", first=100)
    assert not Locations.learn([*once, *shelves(37, "nothing")], rare=0.05).implausible("apple", "shelf")
    assert Locations.learn([*once, *shelves(38, "nothing")], rare=0.05).implausible("apple", "shelf")


def test_what_was_never_seen_anywhere_and_places_never_seen_are_not_judged():
    learnt = Locations.learn(shelves(50, "a vase 1"), rare=0.05)
    assert not learnt.implausible("apple", "shelf") and not learnt.implausible("vase", "desk")


def test_what_the_agent_put_there_itself_and_later_looks_do_not_count():
    looks = [
        ("move apple 1 to shelf 1", "You move the apple 1 to the shelf 1."),
        ("go to shelf 1", "On the shelf 1, you see a apple 1."),
        ("go to desk 1", "On the desk 1, you see a pen 1."),
        ("go to desk 1", "On the desk 1, you see a pen 1, and a cd 1."),
    ]
    assert Locations.learn([visit("t", *looks)], rare=0.05).things == {"pen"}


def test_the_same_place_of_the_same_task_counts_once_however_many_attempts_saw_it():
    apple = visit("k", ("examine table 1", "On the table 1, you see a apple 1."))
    assert not Locations.learn([apple, *[shelves(1, "nothing")[0]] * 100], rare=0.05).implausible("apple", "shelf")


def test_places_can_be_given_and_then_all_others_are_implausible(tmp_path: Path):
    file = tmp_path / "places.json"
    file.write_text(json.dumps({"Apple": ["Fridge"]}))
    given = Locations.read(file)
    assert given.implausible("apple", "bathtub") and not given.implausible("apple", "fridge")
    assert not given.implausible("soap", "fridge")


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not JSON"), ("[]", "must be like"), ('{"apple": "fridge"}', "must be like")]
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, said: str):
    (tmp_path / "places.json").write_text(text)
    with pytest.raises(InputError, match=said):
        Locations.read(tmp_path / "places.json")
    with pytest.raises(InputError, match="cannot be read"):
        Locations.read(tmp_path / "missing.json")
