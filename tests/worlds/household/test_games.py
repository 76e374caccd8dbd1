import json
import random
from itertools import islice
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.worlds.household.game import KINDS
from bough.worlds.household.generate import generated, official
from tests.worlds.household.problem import CONTENT

SIMPLE, HEAT = "pick_and_place_simple", "pick_heat_then_place_in_recep"


def shelve(folder: Path, *names: str, **changes: object) -> None:
    for name in names:
        place = folder / name / "trial"
        place.mkdir(parents=True)
        (place / "game.tw-pddl").write_text(json.dumps(CONTENT | changes))


def names(folder: Path, split: str = "train", seed: int = 0, kinds: tuple[str, ...] = KINDS) -> list[str]:
    return [name for name, _ in official(folder, kinds, split, random.Random(seed))]


def test_generated_games_take_the_kinds_in_turn_and_name_themselves():
    found = list(islice(generated([SIMPLE, HEAT], "seen", 7), 3))
    assert [name for name, _ in found] == [f"seen-7-0-{SIMPLE}", f"seen-7-1-{HEAT}", f"seen-7-2-{SIMPLE}"]
    assert [game.goal.kind for _, game in found] == [SIMPLE, HEAT, SIMPLE]


def test_generated_games_differ_by_seed_and_split():
    games = [
        next(iter(generated([SIMPLE], split, seed)))[1] for split, seed in (("seen", 0), ("seen", 1), ("unseen", 0))
    ]
    assert games[0] != games[1] and games[0] != games[2]


def test_a_folder_gives_its_games_in_an_order_that_the_seed_fixes(tmp_path: Path):
    shelve(tmp_path, *"abcdef")
    assert names(tmp_path) == names(tmp_path) != names(tmp_path, seed=1)
    assert sorted(names(tmp_path)) == [f"{letter}/trial" for letter in "abcdef"]


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


def test_one_file_is_one_game_of_any_split(tmp_path: Path):
    shelve(tmp_path, "a")
    assert names(tmp_path / "a" / "trial" / "game.tw-pddl", "unseen") == ["a/trial"]


def test_mistakes_are_told(tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no game\.tw-pddl in it"):
        names(tmp_path)
    with pytest.raises(InputError, match="no split 'trian'; did you mean train"):
        next(iter(generated([SIMPLE], "trian", 0)))
