import re
from dataclasses import replace
from itertools import islice

import pytest

from bough.worlds.household.engine import GameEngine
from bough.worlds.household.expert import Expert, Memory, Move, progress
from bough.worlds.household.game import KINDS, Game, Kind, Receptacle
from bough.worlds.household.generate import generated, likely
from tests.worlds.household.flat import (
    APPLE_2,
    COUNTERTOP,
    DRAWER,
    FITS,
    MUG,
    RECEPTACLES,
    SHELF,
    SINK,
    THINGS,
    flat,
    played,
)

DOORS = ("cabinet", "drawer", "fridge", "microwave", "safe")


def step(engine: GameEngine, memory: Memory, move: Move) -> str:
    """Takes a move, which memory notes. Only the way to something that is at hand already may be refused."""
    text, action = engine.step(move.command)
    if action is None:
        here = {engine.world.game.receptacles[i].name for i in engine.world.here}
        assert move.command.removeprefix("go to ") in here, move
        memory.refused(move.command)
    else:
        memory.note(action)
    return text


def solve(game: Game, limit: int = 100) -> list[tuple[str, str]]:
    """The expert's thoughts and commands until it wins."""
    engine = GameEngine(game)
    known, moves = Memory(engine.world), []
    while not engine.won:
        move = Expert(known).next()
        assert move is not None and len(moves) < limit, f"the expert gives up after {moves}"
        step(engine, known, move)
        moves.append((move.thought, move.command))
    return moves


def commands(game: Game) -> list[str]:
    return [command for _, command in solve(game)]


def test_who_explores_looks_in_likely_places_and_says_what_was_seen():
    only = (THINGS[0], *THINGS[2:])
    thoughts, way = zip(*solve(flat(things=only)), strict=True)
    assert way[0] == "go to countertop 1" and way[-2:] == ("go to shelf 1", "move apple 2 to shelf 1")
    assert thoughts[0] == "I need an apple. It may be at countertop 1, so I look there."
    assert thoughts[1] == f"I need an apple. There is none at countertop 1, so I look at {way[1][6:]}."


def test_a_neighbour_at_the_same_spot_is_examined_once_the_way_to_it_was_refused():
    """Nothing says before that both stand there, so an agent that reads the same texts has to try too."""
    engine = played(flat(things=THINGS[2:]))
    memory, moves = Memory(engine.world), list[Move]()
    while (move := Expert(memory).next()) is not None:
        moves.append(move)
        step(engine, memory, move)
    assert memory.seen == set(range(7))
    way = [move.command for move in moves]
    refused = way.index("go to sinkbasin 1")
    assert way[refused - 1 : refused + 2] == ["go to countertop 1", "go to sinkbasin 1", "examine sinkbasin 1"]
    assert moves[refused + 1].thought == "I need an apple. I am at sinkbasin 1 already, so I examine it."
    assert len(way) == len(set(way))


def test_what_was_not_shown_changes_no_move():
    """Which of the other drawers have a door and what stands at one spot: whoever imitates the expert cannot know."""
    for name, game in islice(generated(KINDS, "train", 5), 60):
        engine = GameEngine(game)
        world, memory = engine.world, Memory(engine.world)
        while not engine.won:
            move = Expert(memory).next()
            assert move is not None
            hidden = [
                one if i in memory.shown else replace(one, openable=one.type in DOORS and not one.openable, place=99)
                for i, one in enumerate(game.receptacles)
            ]
            world.game = replace(game, receptacles=tuple(hidden))
            assert Expert(memory).next() == move, name
            world.game = game
            step(engine, memory, move)


def test_a_target_at_the_same_spot_is_examined_before_it_is_opened():
    receptacles = (*RECEPTACLES[:5], replace(RECEPTACLES[5], place=3, openable=True), RECEPTACLES[6])
    things = (THINGS[1], *THINGS[2:4])
    assert commands(flat(receptacles=receptacles, things=things))[-5:] == [
        "take apple 1 from countertop 1", "go to shelf 1", "examine shelf 1", "open shelf 1", "move apple 1 to shelf 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("pick_clean_then_place_in_recep", ["clean apple 1 with sinkbasin 1"]),
        ("pick_heat_then_place_in_recep", ["go to microwave 1", "heat apple 1 with microwave 1"]),
        ("pick_cool_then_place_in_recep", ["go to fridge 1", "cool apple 1 with fridge 1"]),
    ],
)
def test_a_thing_is_changed_on_its_way(kind: Kind, change: list[str]):
    take, put = ["go to countertop 1", "take apple 1 from countertop 1"], ["go to shelf 1", "move apple 1 to shelf 1"]
    way = commands(flat(kind))
    assert [command for command in way if command != "go to sinkbasin 1"] == take + change + put


def test_the_second_thing_joins_the_first():
    thoughts, way = zip(*solve(flat("pick_two_obj_and_place")), strict=True)
    assert [command for command in way if command.startswith("move")] == [
        "move apple 1 to shelf 1", "move apple 2 to shelf 1",
    ]  # fmt: skip
    assert thoughts[way.index("move apple 1 to shelf 1") + 1].startswith("I need another apple.")


def test_of_two_shelves_the_one_where_the_first_thing_lies_is_chosen():
    receptacles = (*RECEPTACLES, Receptacle("shelf 2", "shelf", 7))
    things = (THINGS[0], replace(THINGS[1], place=7, inside=(7,)), *THINGS[2:])
    way = commands(flat("pick_two_obj_and_place", receptacles=receptacles, things=things))
    assert "go to shelf 2" in way[:-5] and way[-1] == "move apple 2 to shelf 2"


def test_of_two_sinks_the_one_at_hand_is_used():
    receptacles = (*RECEPTACLES, Receptacle("sinkbasin 2", "sinkbasin", 7))
    things = (replace(THINGS[1], inside=(SINK,)), *THINGS[2:])
    way = commands(flat("pick_clean_then_place_in_recep", receptacles=receptacles, things=things))
    assert "clean apple 1 with sinkbasin 1" in way


def test_the_lamp_is_used_last():
    way = commands(flat("look_at_obj_in_light", "mug", "desklamp"))
    assert "take mug 1 from shelf 1" in way and way[-2:] == ["go to desk 1", "use desklamp 1"]


def test_a_wrong_thing_in_the_hand_is_put_away_first():
    engine = played(flat(), "go to shelf 1", "take mug 1 from shelf 1", "go to microwave 1")
    move = Expert(Memory(engine.world)).next()
    assert move is not None and move.command == "go to countertop 1"
    assert "mug 1, which I do not need" in move.thought


def test_a_game_that_is_won_or_lost_has_no_next_move():
    won = played(
        flat(), "go to countertop 1", "take apple 1 from countertop 1", "go to shelf 1", "move apple 1 to shelf 1"
    )
    assert Expert(Memory(won.world)).next() is None
    stuck = flat(fits={type_: types - {"mug"} for type_, types in FITS.items()})
    lost = played(stuck, "go to shelf 1", "take mug 1 from shelf 1")
    assert Expert(Memory(lost.world)).next() is None


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_generated_games_are_solved(split: str):
    for name, game in islice(generated(KINDS, split, 3), 120):
        assert len(solve(game)) <= 100, name


def test_a_thought_speaks_only_of_what_was_seen_or_named_at_the_start():
    for name, game in islice(generated(KINDS, "unseen", 4), 30):
        engine = GameEngine(game)
        memory, shown = Memory(engine.world), engine.intro
        while not engine.won:
            move = Expert(memory).next()
            assert move is not None
            for thing in re.findall(r"\b[a-z]+ \d+\b", move.thought):
                assert re.search(rf"\b{thing}\b", shown), f"{name}: {thing} was not shown before {move}"
            shown += step(engine, memory, move)


def test_every_official_game_is_solved_within_35_turns(official_games: dict[str, Game]):
    turns = [len(solve(game)) for game in official_games.values()]
    assert len(turns) == 140 and max(turns) <= 35


def test_two_things_in_two_places_come_together():
    """Neither is nearer for good: the choice must not change while the expert walks from one to the other."""
    shelves = (*RECEPTACLES, Receptacle("shelf 2", "shelf", 7))
    apart = (replace(THINGS[0], place=2, inside=(5,)), replace(THINGS[1], place=7, inside=(7,)), *THINGS[2:])
    way = commands(flat(kind="pick_two_obj_and_place", receptacles=shelves, things=apart))
    assert [command for command in way if command.startswith(("take", "move"))] == [
        "take apple 1 from shelf 2", "move apple 1 to shelf 1",
    ]  # fmt: skip


def accepted(command: str, *before: str, game: Game | None = None) -> bool:
    """Whether the expert, who looks for an apple, accepts a command after others, of which some may be refused."""
    engine = GameEngine(game or flat(things=THINGS[2:]))
    memory = Memory(engine.world)
    for one in before:
        _, action = engine.step(one)
        memory.refused(one) if action is None else memory.note(action)
    return Expert(memory).accepts(engine.commands[command])


@pytest.mark.parametrize(
    ("before", "command", "as_good"),
    [
        ((), "go to fridge 1", True),  # the expert goes to countertop 1 first
        ((), "go to drawer 1", False),  # no apple was ever seen in one
        ((), "look", False),
        (("go to fridge 1",), "open fridge 1", True),
        (("go to fridge 1",), "go to countertop 1", False),  # it is closed, and was not opened
        (("go to fridge 1", "open fridge 1"), "close fridge 1", False),
        (("go to fridge 1", "open fridge 1"), "go to microwave 1", True),
        (("go to drawer 1",), "go to fridge 1", True),  # closed too, but no place for apples
        (("go to fridge 1", "go to desk 1"), "go to fridge 1", False),  # it was there, and left it closed
        (("go to countertop 1", "go to desk 1"), "go to countertop 1", False),  # seen already
        (("go to countertop 1", "go to sinkbasin 1"), "examine sinkbasin 1", True),
        (("go to countertop 1",), "examine countertop 1", False),
    ],
)
def test_in_a_search_every_place_that_may_have_the_thing_is_as_good(
    before: tuple[str, ...], command: str, as_good: bool
):
    assert accepted(command, *before) is as_good


def test_nothing_but_a_search_accepts_another_way():
    assert not accepted("go to fridge 1", "go to countertop 1", game=flat()), "the apple is here"
    assert not accepted("go to fridge 1", "go to countertop 1", "take apple 1 from countertop 1", game=flat())


def test_the_expert_accepts_its_own_moves_in_a_search():
    for _, game in islice(generated(KINDS, "train", 3), 24):
        engine = GameEngine(game)
        memory, expert = Memory(engine.world), None
        while not engine.won and (move := (expert := Expert(memory)).next()) is not None:
            action = engine.commands.get(move.command)
            if move.wanted and action is not None and likely(move.wanted, game.receptacles[action.receptacle].type):
                assert expert.accepts(action), move
            step(engine, memory, move)


def remembered(*commands: str) -> Memory:
    engine = played(flat())
    memory = Memory(engine.world)
    for command in commands:
        _, action = engine.step(command)
        memory.refused(command) if action is None else memory.note(action)
    return memory


def test_what_a_receptacle_holds_is_known_once_it_was_looked_into():
    memory = remembered()
    assert (memory.seen, memory.last, memory.knows({MUG})) == (set(), None, False)
    memory = remembered("go to shelf 1")
    assert (memory.seen, memory.last, memory.where(MUG)) == ({SHELF}, SHELF, [SHELF])
    assert remembered("go to drawer 1", "examine drawer 1").seen == set(), "it is closed"
    memory = remembered("go to drawer 1", "open drawer 1", "close drawer 1")
    assert memory.seen == {DRAWER} and memory.knows({APPLE_2})
    memory = remembered("go to shelf 1", "take mug 1 from shelf 1")
    assert memory.knows({MUG}) and memory.where(MUG) == [], "it is in the hand"
    assert len(remembered("go to countertop 1").seen) == 1, "a neighbour at the same spot is not seen by going there"
    assert len(remembered("go to countertop 1", "examine sinkbasin 1").seen) == 2


def test_what_stands_at_one_spot_is_known_once_it_was_reached_or_refused():
    assert remembered().at_hand == set()
    assert remembered("go to countertop 1").at_hand == {COUNTERTOP}
    assert remembered("go to countertop 1", "go to sinkbasin 1").at_hand == {COUNTERTOP, SINK}
    assert remembered("go to countertop 1", "look").at_hand == {COUNTERTOP, SINK}
    assert remembered("go to countertop 1", "go to sinkbasin 1", "go to shelf 1").at_hand == {SHELF}
    assert remembered("go to countertop 1", "go to drawer 9", "open fridge 1").at_hand == {COUNTERTOP}
    assert remembered("go to drawer 1").shown == {DRAWER}
    assert remembered("go to countertop 1", "go to sinkbasin 1").shown == {COUNTERTOP}


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


TAKE = ("go to countertop 1", "take apple 1 from countertop 1")
PLACE = ("go to shelf 1", "move apple 1 to shelf 1")
SECOND = ("go to drawer 1", "open drawer 1", "take apple 2 from drawer 1", "go to shelf 1", "move apple 2 to shelf 1")
CLEAN = "clean apple 1 with sinkbasin 1"


@pytest.mark.parametrize(
    ("kind", "way", "values"),
    [
        ("pick_and_place_simple", ("go to desk 1", *TAKE, *PLACE), [0, 0, 1 / 3, 2 / 3, 2 / 3, 1]),
        ("pick_and_place_simple", (*TAKE, "move apple 1 to sinkbasin 1", "examine sinkbasin 1"),
         [0, 1 / 3, 2 / 3, 0, 1 / 3]),
        ("pick_clean_then_place_in_recep", (*TAKE, CLEAN, *PLACE), [0, 0.25, 0.5, 0.75, 0.75, 1]),
        ("pick_clean_then_place_in_recep", (*TAKE, *PLACE), [0, 0.25, 0.5, 0.5, 0.25]),
        ("pick_two_obj_and_place", (*TAKE, *PLACE, *SECOND),
         [0, 1 / 6, 1 / 3, 1 / 3, 1 / 2, 1 / 2, 2 / 3, 5 / 6, 5 / 6, 1]),
    ],
)  # fmt: skip
def test_progress_counts_what_is_found_taken_changed_and_placed(kind: Kind, way: tuple[str, ...], values: list[float]):
    assert course(kind, *way) == pytest.approx(values)


def test_the_lamp_counts_where_it_shines():
    way = ("go to desk 1", "use desklamp 1", "go to shelf 1", "take mug 1 from shelf 1", "go to desk 1")
    values = course("look_at_obj_in_light", *way, thing="mug", target="desklamp")
    assert values == pytest.approx([0, 0, 1 / 3, 1 / 3, 2 / 3, 1])
