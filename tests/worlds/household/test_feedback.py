from dataclasses import replace

import pytest

from bough.worlds.household.game import WORDING, Thing, Wording
from tests.worlds.household.flat import COUNTERTOP, KNIFE, MUG, SHELF, THINGS, flat, played

APPLE = ("go to countertop 1", "take apple 1 from countertop 1")
KNIFE_IN_HAND = ("go to countertop 1", "take knife 1 from countertop 1")


def said(*commands: str, **changes: object) -> str:
    """What the last command is answered with."""
    engine = played(flat(**changes), *commands[:-1])
    return engine.step(commands[-1])[0]


def test_the_intro_names_the_furniture_and_the_task():
    assert played(flat()).intro == (
        "-= Welcome to TextWorld, ALFRED! =-\n\n"
        "You are in the middle of a room. Looking quickly around you, you see a countertop 1, a desk 1, a drawer 1, "
        "a fridge 1, a microwave 1, a shelf 1, and a sinkbasin 1.\n\n"
        "Your task is to: put some apple on shelf."
    )


def test_who_starts_at_a_receptacle_faces_it():
    assert "You are facing the shelf 1. Next to it, you see nothing." in played(flat(start=2)).intro


def test_looking_around_in_the_middle_of_the_room_shows_nothing():
    assert said("look") == "You are in the middle of a room. Looking quickly around you, you see nothing."


@pytest.mark.parametrize(
    ("commands", "answer"),
    [
        (("go to shelf 1",), "You arrive at shelf 1. On the shelf 1, you see a mug 1."),
        (("go to countertop 1",), "You arrive at countertop 1. On the countertop 1, you see a apple 1, and a knife 1."),
        (("go to sinkbasin 1",), "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."),
        (("go to drawer 1",), "You arrive at drawer 1. The drawer 1 is closed."),
        (("go to drawer 1", "open drawer 1"), "You open the drawer 1. The drawer 1 is open. In it, you see a apple 2."),
        (("go to drawer 1", "open drawer 1", "close drawer 1"), "You close the drawer 1."),
        (("go to drawer 1", "examine drawer 1"), "The drawer 1 is closed."),
        (("go to shelf 1", "examine shelf 1"), "On the shelf 1, you see a mug 1."),
        (APPLE, "You pick up the apple 1 from the countertop 1."),
        ((*APPLE, "move apple 1 to sinkbasin 1"), "You move the apple 1 to the sinkbasin 1."),
        ((*APPLE, "clean apple 1 with sinkbasin 1"), "You clean the apple 1 using the sinkbasin 1."),
        ((*APPLE, "go to microwave 1", "heat apple 1 with microwave 1"), "You heat the apple 1 using the microwave 1."),
        ((*APPLE, "go to fridge 1", "cool apple 1 with fridge 1"), "You cool the apple 1 using the fridge 1."),
        ((*KNIFE_IN_HAND, "slice apple 1 with knife 1"), "You sliced the apple 1 with the knife 1."),
        (("go to desk 1", "use desklamp 1"), "You turn on the desklamp 1."),
        (("go to desk 1", "use desklamp 1", "use desklamp 1"), "You turn on the desklamp 1."),
        (("inventory",), "You are not carrying anything."),
        ((*APPLE, "inventory"), "You are carrying: a apple 1."),
        (("help",), WORDING.help),
        (("go to desk 1", "look"), "You are facing the desk 1. Next to it, you see nothing."),
    ],
)  # fmt: skip
def test_each_command_has_its_answer(commands: tuple[str, ...], answer: str):
    assert said(*commands) == answer


@pytest.mark.parametrize(
    ("states", "answer"),
    [
        ("", "There's nothing special about apple 1."),
        ("C", "This is a clean apple 1."),
        ("H", "This is a hot apple 1."),
        ("K", "This is a cold apple 1."),
        ("S", "This is a sliced apple 1."),
        ("CH", "This is a hot and clean apple 1."),
        ("CK", "This is a cool and clean apple 1."),
        ("CS", "This is a clean sliced apple 1."),
        ("HS", "This is a hot sliced apple 1."),
        ("KS", "This is a cool sliced apple 1."),
        ("CHS", "This is a hot and clean sliced apple 1."),
        ("CKS", "This is a cool and clean sliced apple 1."),
        ("HK", "This is a hot apple 1."),
    ],
)
def test_an_examined_thing_shows_its_states(states: str, answer: str):
    things = (THINGS[0], replace(THINGS[1], traits="pchks" + states), *THINGS[2:])
    assert said(*APPLE, "examine apple 1", things=things) == answer


def test_what_cannot_be_sliced_shows_no_slices():
    things = (THINGS[0], replace(THINGS[1], traits="pS"), *THINGS[2:])
    assert said(*APPLE, "examine apple 1", things=things) == "There's nothing special about apple 1."


def test_an_examined_container_shows_what_it_holds_and_no_state():
    things = (*THINGS[:MUG], replace(THINGS[MUG], traits="pchkrC"))
    mug = ("go to shelf 1", "take mug 1 from shelf 1", "examine mug 1")
    assert said(*mug, things=things) == "This is a normal mug 1. In it, you see nothing."
    assert said(*mug, things=things, within=((KNIFE, MUG),)) == "This is a normal mug 1. In it, you see a knife 1."


def test_a_thing_that_can_be_switched_says_on_once_it_was_used():
    torch = Thing("torch 1", "torch", "pt", 3, (COUNTERTOP,))
    take = ("go to countertop 1", "take torch 1 from countertop 1", "examine torch 1")
    assert said(*take, things=(*THINGS, torch)) == "There's nothing special about torch 1."
    assert said("go to countertop 1", "use torch 1", *take[1:], things=(*THINGS, torch)) == "This torch 1 is on."


def test_what_came_back_to_a_place_lies_next_to_where_it_was_taken_from():
    moved = (*APPLE, "move apple 1 to sinkbasin 1")
    facing = "You are facing the countertop 1, and sinkbasin 1. Next to it, you see"
    assert said(*moved, "look") == f"{facing} a apple 1."
    back = (*moved, "take apple 1 from sinkbasin 1", "move apple 1 to countertop 1")
    # It came back to the countertop, and was taken from the sinkbasin.
    assert said(*back, "look") == f"{facing} a apple 1."
    assert said(*APPLE, "move apple 1 to countertop 1", "look") == f"{facing} nothing."
    assert said(*moved, "take apple 1 from sinkbasin 1", "look") == f"{facing} nothing."


def test_what_lies_next_to_a_place_is_listed_in_the_order_of_the_ids():
    # The pen is number 40: a set of a few small numbers would name it before number 1.
    books = tuple(Thing(f"book {i}", "book", "p", 2, (SHELF,)) for i in range(35, 0, -1))
    things = (*THINGS, *books, Thing("pen 1", "pen", "p", 3, (COUNTERTOP,)))
    fits = {"sinkbasin": frozenset({"apple", "pen"})}
    move = ("take pen 1 from countertop 1", "move pen 1 to sinkbasin 1")
    way = ("go to countertop 1", *move, *APPLE[1:], "move apple 1 to sinkbasin 1", "look")
    assert said(*way, things=things, fits=fits).endswith("Next to it, you see a apple 1, and a pen 1.")


def test_what_was_taken_from_two_receptacles_of_a_place_is_listed_twice():
    receptacles = tuple(replace(r, place=3) if r.name == "shelf 1" else r for r in flat().receptacles)
    way = (
        *APPLE, "move apple 1 to sinkbasin 1", "take apple 1 from sinkbasin 1", "move apple 1 to shelf 1", "look",
    )  # fmt: skip
    assert said(*way, receptacles=receptacles).endswith("Next to it, you see a apple 1, and a apple 1.")


def test_an_edition_has_its_own_words_for_putting_and_for_help():
    wording = Wording("put {o} in/on {r}", "You put the {o} in/on the {r}.", "Help!")
    assert (
        said(*APPLE, "put apple 1 in/on sinkbasin 1", wording=wording) == "You put the apple 1 in/on the sinkbasin 1."
    )
    assert said("help", wording=wording) == "Help!"
