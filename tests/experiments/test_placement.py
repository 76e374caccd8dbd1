"""Which worker has which members, and what happens to those of a lost one."""

from typing import Any

import pytest

from bough.errors import BoughError
from bough.experiments.cluster import dealt, work
from tests.experiments.parts import FakeActors

NAMES = ["a", "b", "c", "d"]


class Echo:
    def train(self, names: list[str]) -> list[str]:
        return names


def actors(count: int, kill: tuple[str, int] | None = None) -> Any:
    return FakeActors(count, Echo, kill)


def test_shares_differ_by_one_member_at_most_and_none_is_empty():
    two = actors(2).workers
    assert list(dealt(NAMES, two).values()) == [["a", "c"], ["b", "d"]]
    assert list(dealt(NAMES[:3], two).values()) == [["a", "c"], ["b"]]
    assert list(dealt(NAMES[:1], two).values()) == [["a"]]


@pytest.mark.parametrize("kill", [("train", 1), ("train", 2)])
def test_the_share_of_a_lost_worker_is_done_by_the_others(kill: tuple[str, int]):
    workers = actors(2, kill)
    done = work(workers, NAMES, lambda one, own: workers.start(one, "train", own))
    assert sorted(name for names in done for name in names) == NAMES
    assert sum(worker.lost.is_set() for worker in workers.workers) == 1


def test_members_that_no_worker_survives_are_given_up():
    workers = actors(9)
    workers.dies = lambda method: method == "train"
    with pytest.raises(BoughError, match="lost 5 times in a row"):
        work(workers, ["a"], lambda one, own: workers.start(one, "train", own))
