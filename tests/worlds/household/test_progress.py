import pytest

from bough.worlds.household.expert import Memory, progress
from bough.worlds.household.game import Kind
from tests.worlds.household.flat import flat, played


def course(kind: Kind, *commands: str, thing: str = "apple", target: str = "shelf") -> list[float]:
    """The progress at the start and after each command."""
    engine = played(flat(kind, thing, target))
    memory = Memory(engine.world)
    values = [progress(memory)]
    for command in commands:
        _, action = engine.step(command)
        assert action is not None, command
        memory.note(action)
        values.append(progress(memory))
    return values


def test_finding_taking_and_placing_are_a_third_each():
    way = (
        "go to desk 1",
        "go to countertop 1",
        "take apple 1 from countertop 1",
        "go to shelf 1",
        "move apple 1 to shelf 1",
    )
    assert course("pick_and_place_simple", *way) == pytest.approx([0, 0, 1 / 3, 2 / 3, 2 / 3, 1])


def test_putting_it_down_elsewhere_loses_what_taking_it_gained():
    way = ("go to countertop 1", "take apple 1 from countertop 1", "move apple 1 to sinkbasin 1")
    assert course("pick_and_place_simple", *way)[1:3] == pytest.approx([1 / 3, 2 / 3])
    assert course("pick_and_place_simple", *way, "examine sinkbasin 1")[-1] == pytest.approx(1 / 3)


def test_cleaning_is_a_quarter_and_a_dirty_thing_on_the_shelf_is_only_found():
    way = (
        "go to countertop 1", "take apple 1 from countertop 1", "clean apple 1 with sinkbasin 1",
        "go to shelf 1", "move apple 1 to shelf 1",
    )  # fmt: skip
    assert course("pick_clean_then_place_in_recep", *way) == [0, 0.25, 0.5, 0.75, 0.75, 1]
    assert course("pick_clean_then_place_in_recep", *way[:2], *way[3:])[-1] == 0.25


def test_each_of_two_things_is_a_half():
    way = (
        "go to countertop 1", "take apple 1 from countertop 1", "go to shelf 1", "move apple 1 to shelf 1",
        "go to drawer 1", "open drawer 1", "take apple 2 from drawer 1", "go to shelf 1", "move apple 2 to shelf 1",
    )  # fmt: skip
    expected = [0, 1 / 6, 1 / 3, 1 / 3, 1 / 2, 1 / 2, 2 / 3, 5 / 6, 5 / 6, 1]
    assert course("pick_two_obj_and_place", *way) == pytest.approx(expected)


def test_the_lamp_counts_where_it_shines():
    way = ("go to desk 1", "use desklamp 1", "go to shelf 1", "take mug 1 from shelf 1", "go to desk 1")
    values = course("look_at_obj_in_light", *way, thing="mug", target="desklamp")
    assert values == pytest.approx([0, 0, 1 / 3, 1 / 3, 2 / 3, 1])
