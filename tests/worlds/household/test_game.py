import json
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.worlds.household.game import Game, Goal, Receptacle, Thing, Wording, parse, read
from tests.worlds.household.flat import MUG, RECEPTACLES, flat
from tests.worlds.household.problem import CONTENT, GOAL, GRAMMAR, INIT, problem


def goal_of(text: str) -> Goal:
    return parse(CONTENT | {"pddl_problem": problem(goal=text)}).goal


def test_a_file_is_read_into_a_game():
    game = parse(CONTENT)
    assert game.task == "Your task is to: put a cup in shelf."
    assert game.start == 0
    assert game.receptacles == (
        Receptacle("drawer 1", "drawer", 2, openable=True),
        Receptacle("shelf 1", "shelf", 1),
        Receptacle("sinkbasin 1", "sinkbasin", 1),
    )
    # In the order of the ids, numbers counted down.
    assert game.things == (
        Thing("cup 2", "cup", "p", 2, (0,)),
        Thing("cup 1", "cup", "r", 1, (2,)),
        Thing("sink 1", "sink", "", 1, ()),
    )
    assert game.within == ((2, 1),)
    assert game.fits == {"shelf": frozenset({"cup"})}
    assert game.wording == Wording(help="Help yourself.")


def test_an_older_edition_keeps_its_words():
    older = GRAMMAR.replace("move {o} to {r}", "put {o} in/on {r}").replace("You move the", "You put the")
    wording = parse(CONTENT | {"grammar": older}).wording
    assert (wording.put_command, wording.put_feedback) == ("put {o} in/on {r}", "You put the {o} to the {r}.")


def test_help_may_stand_among_the_rules():
    inline = 'feedback :: "\nHelp yourself.\n";'
    rule = 'feedback :: "#help.feedback#"; grammar :: """{"help.feedback": [{"rhs": "\\nLine 1\\nLine 2\\n"}]}""";'
    assert inline in GRAMMAR
    assert parse(CONTENT | {"grammar": GRAMMAR.replace(inline, rule)}).wording.help == "Line 1\nLine 2"


PLACE = "(inReceptacle ?o ?r) (objectType ?o CupType) (receptacleType ?r ShelfType)"


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        (f"(and {PLACE})", Goal("pick_and_place_simple", "cup", "shelf")),
        (f"(and {PLACE} (cleanable ?o) (isClean ?o))", Goal("pick_clean_then_place_in_recep", "cup", "shelf")),
        (f"(and {PLACE} (heatable ?o) (isHot ?o))", Goal("pick_heat_then_place_in_recep", "cup", "shelf")),
        (f"(and {PLACE} (coolable ?o) (isCool ?o))", Goal("pick_cool_then_place_in_recep", "cup", "shelf")),
        (f"(and {PLACE} (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p CupType))))",
         Goal("pick_two_obj_and_place", "cup", "shelf")),
        ("(and (exists (?l - object) (and (objectType ?l DeskLampType) (toggleable ?l) (isToggled ?l) "
         "(receptacleAtLocation ?r ?p) (atLocation ?a ?p) (inReceptacle ?l ?r))) "
         "(exists (?o - object) (and (objectType ?o CupType) (holds ?a ?o))))",
         Goal("look_at_obj_in_light", "cup", "desklamp")),
    ],
)  # fmt: skip
def test_the_goal_tells_the_type_of_the_task(text: str, goal: Goal):
    assert goal_of(text) == goal


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"pddl_problem": problem(goal=f"(and {PLACE} (isSliced ?o))")}, "none of the six types .* issliced"),
        ({"pddl_problem": problem(goal=f"(and {PLACE} (objectType ?p MugType))")}, "several types"),
        ({"pddl_problem": problem(init=INIT + "(holds agent1 Cup_bar__minus_1)")}, "no official game has: holds"),
        ({"pddl_problem": problem(init="(openable Drawer_bar_1)")}, "where the agent is"),
        ({"pddl_problem": f"(define (:goal {GOAL}))"}, "lacks"),
        ({"grammar": GRAMMAR.replace('"task"', '"tusk"')}, 'the grammar lacks the rule "task"'),
        ({"grammar": GRAMMAR.replace("action help", "action held")}, "the grammar lacks the action PutObject or help"),
    ],
)
def test_what_no_official_file_says_is_refused(content: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        parse(CONTENT | content)


def test_a_file_that_is_no_game_is_named(tmp_path: Path):
    path = tmp_path / "game.tw-pddl"
    with pytest.raises(InputError, match=r"game\.tw-pddl: the game cannot be read: No such file"):
        read(path)
    for text, message in (
        ("{", "is JSON"),
        ("[]", 'has "pddl_problem"'),
        (json.dumps({"grammar": ""}), 'has "pddl_problem"'),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message) as raised:
            read(path)
        assert str(raised.value).startswith(str(path))
    path.write_text(json.dumps(CONTENT | {"pddl_problem": ""}))
    with pytest.raises(InputError, match="lacks") as raised:
        read(path)
    assert str(raised.value).startswith(str(path))


def test_every_official_game_has_the_type_and_the_size_it_should(official_games: dict[str, Game]):
    for name, game in official_games.items():
        kind, thing, _, target, _ = name.split("/")[0].split("-")
        assert game.goal == Goal(kind, thing.lower(), target.lower()), name
        assert len(json.dumps(game.to_data())) < 10_000, name


def test_a_game_survives_its_compact_form():
    open_drawer = (*RECEPTACLES[:2], Receptacle("drawer 1", "drawer", 1, openable=True, opened=True), *RECEPTACLES[3:])
    for game in (
        flat(),
        flat(receptacles=open_drawer),
        flat(within=((3, MUG),), wording=Wording("put {o} in/on {r}", "You put the {o} in/on the {r}.", "Help!")),
    ):
        assert Game.from_data(json.loads(json.dumps(game.to_data()))) == game
    assert flat().to_data().keys() == {"task", "goal", "start", "receptacles", "things", "fits"}
