import json
import random
from itertools import islice
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.worlds.household.engine import GameEngine
from bough.worlds.household.game import KINDS, Kind
from bough.worlds.household.generate import (
    SENTENCES,
    Split,
    generate,
    generated,
    goals,
    held_out,
    layouts,
    likely,
    official,
    rooms,
)
from tests.worlds.household.problem import CONTENT


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_game_and_another_seed_another(kind: Kind):
    first, again, other = (generate(kind, "train", random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert first.goal.kind == kind


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_what_a_game_needs_is_there_it_is_not_won_yet_and_its_task_says_what_wins(split: Split):
    for name, game in islice(generated(KINDS, split, 0), 120):
        assert not GameEngine(game).won, name
        types = [thing.type for thing in game.things]
        assert types.count(game.goal.object) >= (2 if game.goal.kind == "pick_two_obj_and_place" else 1), name
        assert game.goal.kind != "look_at_obj_in_light" or "desklamp" in types, name
        sentences = [s.format(o=game.goal.object, r=game.goal.target) for s in SENTENCES[game.goal.kind]]
        assert game.task.removeprefix("Your task is to: ") in sentences


def test_splits_share_no_combination_with_training_and_unseen_shares_no_room():
    def drawn(split: Split) -> tuple[set[object], set[object]]:
        found = [game for _, game in islice(generated(KINDS, split, 0), 240)]
        return {game.goal for game in found}, {game.receptacles for game in found}

    (train, train_rooms), (seen, seen_rooms), (unseen, unseen_rooms) = map(drawn, ("train", "seen", "unseen"))
    assert not train & seen and not train & unseen
    assert not train_rooms & unseen_rooms and not seen_rooms & unseen_rooms
    assert train_rooms & seen_rooms
    assert not any(map(held_out, train)) and all(map(held_out, seen | unseen))


def test_about_one_combination_in_six_is_held_out():
    kitchen = rooms().rooms[0]
    every = {goal for kind in KINDS for layout in layouts(kitchen)[:20] for goal in goals(kind, layout)}
    assert 0.12 < sum(map(held_out, every)) / len(every) < 0.22


def test_a_room_is_furnished_as_the_official_ones():
    for layout in layouts(rooms().rooms[0]):
        names, types = [r.name for r in layout.receptacles], [r.type for r in layout.receptacles]
        assert types == sorted(types) and types.count("fridge") == types.count("microwave") == 1
        assert len(set(names)) == len(names)
        assert 0 not in {receptacle.place for receptacle in layout.receptacles}
    for room in rooms().rooms:
        assert len({layout.receptacles for layout in layouts(room)}) == 100
    names = [r.name for r in layouts(rooms().rooms[0])[7].receptacles if r.type == "stoveburner"]
    assert names == [f"stoveburner {i}" for i in range(len(names), 0, -1)] and len(names) >= 4
    kitchens = [layout.receptacles for layout in layouts(rooms().rooms[0])]
    spots = sum(len({receptacle.place for receptacle in receptacles}) for receptacles in kitchens)
    assert 0.05 < 1 - spots / sum(map(len, kitchens)) < 0.2


def test_things_lie_where_official_ones_were_seen():
    for name, game in islice(generated(KINDS, "train", 5), 60):
        for thing in game.things:
            (inside,) = thing.inside
            holder = game.receptacles[inside]
            assert any(room.where.get(thing.type, {}).get(holder.type) for room in rooms().rooms), (name, thing)
            assert thing.place == holder.place


SIMPLE, HEAT = "pick_and_place_simple", "pick_heat_then_place_in_recep"


def shelve(folder: Path, *names: str, **changes: object) -> None:
    for name in names:
        place = folder / name / "trial"
        place.mkdir(parents=True)
        (place / "game.tw-pddl").write_text(json.dumps(CONTENT | changes))


def names(folder: Path, split: str = "train", seed: int = 0, kinds: tuple[str, ...] = KINDS) -> list[str]:
    return [name for name, _ in official(folder, kinds, split, random.Random(seed))]


def test_generated_games_take_the_kinds_in_turn_and_differ_by_seed_and_split():
    found = list(islice(generated([SIMPLE, HEAT], "seen", 7), 3))
    assert [name for name, _ in found] == [f"seen-7-0-{SIMPLE}", f"seen-7-1-{HEAT}", f"seen-7-2-{SIMPLE}"]
    assert [game.goal.kind for _, game in found] == [SIMPLE, HEAT, SIMPLE]
    games = [
        next(iter(generated([SIMPLE], split, seed)))[1] for split, seed in (("seen", 0), ("seen", 1), ("unseen", 0))
    ]
    assert games[0] != games[1] and games[0] != games[2]


def test_a_folder_gives_its_games_in_an_order_that_the_seed_fixes_and_a_file_its_one(tmp_path: Path):
    shelve(tmp_path, *"abcdef")
    assert names(tmp_path) == names(tmp_path) != names(tmp_path, seed=1)
    assert sorted(names(tmp_path)) == [f"{letter}/trial" for letter in "abcdef"]
    assert names(tmp_path / "a" / "trial" / "game.tw-pddl", "unseen") == ["a/trial"]


def test_the_official_split_folders_are_the_splits(tmp_path: Path):
    shelve(tmp_path / "train", "a")
    shelve(tmp_path / "valid_unseen", "b")
    assert names(tmp_path, "train") == ["a/trial"]
    assert names(tmp_path, "unseen") == names(tmp_path, "valid_unseen") == ["b/trial"]
    with pytest.raises(InputError, match="no folder valid_seen"):
        names(tmp_path, "seen")


def test_games_of_other_kinds_and_unsolvable_ones_are_left_out(tmp_path: Path):
    shelve(tmp_path, "a")
    shelve(tmp_path, "b", solvable=False)
    assert names(tmp_path) == ["a/trial"]
    assert names(tmp_path, kinds=(HEAT,)) == []


def test_mistakes_are_told(tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no game\.tw-pddl in it"):
        names(tmp_path)
    with pytest.raises(InputError, match="no split 'trian'; did you mean train"):
        next(iter(generated([SIMPLE], "trian", 0)))


def test_the_statistics_of_rooms_are_complete():
    known = {room.name: room for room in rooms().rooms}
    assert known.keys() == {"kitchen", "livingroom", "bedroom", "bathroom"}
    assert known["kitchen"].receptacles["fridge"] == [0, 27]  # each of the 27 official kitchens has one
    assert "toilet" not in known["kitchen"].receptacles
    places = {receptacle for room in rooms().rooms for receptacle in room.receptacles}
    assert abs(sum(likely("mug", receptacle) for receptacle in places) - 1) < 1e-9
    assert likely("mug", "toilet") == likely("unicorn", "shelf") == 0
    assert likely("bread", "countertop") > likely("bread", "fridge") > 0
    assert {thing for room in rooms().rooms for thing in room.things} == rooms().traits.keys()
