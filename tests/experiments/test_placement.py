"""Which worker has which members."""

from pathlib import Path
from typing import Any

import pytest

from bough.errors import BoughError
from bough.experiments.generation import Files, Generation, Individual
from bough.experiments.population_parts import Placement, shares
from tests.experiments.parts import FakeActor, FakeActors


def test_shares_differ_by_one_member_at_most_and_none_is_empty():
    assert shares(["a", "b", "c", "d"], {1: [], 2: []}) == {1: ["a", "c"], 2: ["b", "d"]}
    assert shares(["a", "b", "c"], {1: [], 2: []}) == {1: ["a", "b"], 2: ["c"]}
    assert shares(["a"], {1: [], 2: [], 3: []}) == {1: ["a"]}


def test_members_stay_where_they_are_and_the_others_fill_up():
    assert shares(["a", "b", "c", "d"], {1: ["c"], 2: ["a", "b"]}) == {1: ["c", "d"], 2: ["a", "b"]}
    # Too many in one place: one of them moves.
    assert shares(["a", "b", "c", "d"], {1: [], 2: ["a", "b", "c"]}) == {1: ["c", "d"], 2: ["a", "b"]}
    # The larger share is where more members are.
    assert shares(["a", "b", "c"], {1: ["c"], 2: ["a", "b"]}) == {1: ["c"], 2: ["a", "b"]}
    assert shares(["a", "b"], {1: ["gone"], 2: ["a", "gone too"]}) == {1: ["b"], 2: ["a"]}


class Memory:
    """A part that only remembers who is in memory, and the sizes of what it was given."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.whole: list[list[str]] = []

    def load(self, members: dict[str, Files]) -> None:
        self.members = list(members)
        self.whole.append([name for name, files in members.items() if len(files) > 1])

    def train(self) -> list[str]:
        return self.members


def written(folder: Path, **steps: int) -> Generation:
    for name, step in steps.items():
        (folder / name).mkdir(parents=True)
        Individual(name=name, step=step).write(folder / name)
        (folder / name / "weights").write_text(name)
    return Generation(folder, number=0, trained=False)


def placement(kill: tuple[str, int] | None = None, count: int = 2) -> tuple[Any, Any]:
    actors: Any = FakeActors(count, Memory, kill)
    return Placement(actors), actors


def test_only_members_that_a_worker_does_not_have_are_sent_to_it(tmp_path: Path):
    places, actors = placement()
    first = written(tmp_path / "first", a=2, b=2, c=2, d=2)
    assert list(places.placed(first, first.members).values()) == [["a", "c"], ["b", "d"]]
    places.placed(first, first.members)
    # b and c live on, a and d are replaced.
    second = written(tmp_path / "second", b=2, c=2, e=2, f=2)
    assert list(places.placed(second, second.members).values()) == [["c", "e"], ["b", "f"]]
    assert [actor.made.whole for actor in actors.actors] == [[["a", "c"], ["e"]], [["b", "d"], ["f"]]]
    # What was trained since is not what the worker has.
    third = written(tmp_path / "third", b=4, c=4, e=2, f=2)
    places.note({actors.actors[0]: {"c": 4, "e": 2}})
    places.placed(third, third.members)
    assert [actor.made.whole[-1] for actor in actors.actors] == [["e"], ["b"]]


@pytest.mark.parametrize("kill", [("load", 2), ("train", 1), ("train", 2)])
def test_the_share_of_a_lost_worker_is_done_by_the_others(tmp_path: Path, kill: tuple[str, int]):
    places, actors = placement(kill)
    generation = written(tmp_path, a=0, b=0, c=0, d=0)
    ended: list[FakeActor] = []
    done = places.work(
        generation, generation.members, lambda one, _: one.start("train"), ended=lambda one, _: ended.append(one)
    )
    assert sorted(name for names in done for name in names) == ["a", "b", "c", "d"]
    assert len(ended) == len(done) and sum(actor.lost for actor in actors.actors) == 1


def test_members_that_no_worker_survives_are_given_up(tmp_path: Path):
    places, actors = placement(count=9)
    actors.dies = lambda method: method == "train"
    generation = written(tmp_path, a=0)
    with pytest.raises(BoughError, match="lost 5 times in a row"):
        places.work(generation, generation.members, lambda one, _: one.start("train"))
