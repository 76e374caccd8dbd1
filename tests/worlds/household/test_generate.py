import random
from itertools import islice

import pytest

from bough.worlds.household.engine import GameEngine
from bough.worlds.household.game import KINDS, Kind
from bough.worlds.household.generate import SENTENCES, Split, generate, generated, goals, held_out, layouts, rooms


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


def test_no_two_rooms_are_alike():
    for room in rooms().rooms:
        assert len({layout.receptacles for layout in layouts(room)}) == 100


def test_numbers_count_down_as_in_official_games():
    names = [r.name for r in layouts(rooms().rooms[0])[7].receptacles if r.type == "stoveburner"]
    assert names == [f"stoveburner {i}" for i in range(len(names), 0, -1)] and len(names) >= 4


def test_some_receptacles_share_a_spot_and_most_do_not():
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
