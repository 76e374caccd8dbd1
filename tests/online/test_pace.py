"""Which tasks enter which batch, under random episode lengths, losses and groups that give no training signal."""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.online.schedule import DRAWS, Pace, Verdict

EPISODES = 4


@dataclass(frozen=True)
class Task:
    """What a task will come to, whenever it ends."""

    number: int
    teaches: bool
    num_lost: int = 0
    age: int = 0

    @property
    def num_finished(self) -> int:
        return EPISODES - self.num_lost


Batch = tuple[Verdict, list[int], list[int]]  # numbers of its groups, and of all that was played for it


def outcome(number: int, seed: int, teaching: float, losing: float) -> Task:
    rng = random.Random(f"{seed} {number}")
    lost = EPISODES if rng.random() < losing else 0
    return Task(number, not lost and rng.random() < teaching, lost)


def one_by_one(size: int, budget: int, first: int, seed: int, teaching: float, losing: float) -> Batch:
    """A batch of tasks that are played one after the other, in the order of their numbers."""
    tried: list[Task] = []
    while True:
        tried.append(outcome(first + len(tried), seed, teaching, losing))
        taught = [task.number for task in tried if task.teaches]
        numbers = [task.number for task in tried]
        draw, rest = divmod(len(tried), budget)
        if len(tried) == max(2, size) and not any(task.num_finished for task in tried):
            return "lost", [], numbers
        if len(taught) == size or (taught and not rest):
            return "complete", taught, numbers
        if not rest:
            last = tried[-budget:]
            if sum(task.num_lost for task in last) > sum(task.num_finished for task in last):
                return "lost", [], numbers
            if draw == DRAWS:
                return "nothing", [], numbers


def streamed(
    pace: Pace, slots: int, num_batches: int, seed: int, teaching: float, losing: float, delays: int
) -> Iterator[Batch]:
    """The same with `slots` tasks in flight, each as long as it happens to be."""
    rng, clock = random.Random(delays), 0.0
    waiting: list[int] = []
    flying: list[tuple[float, int]] = []
    for batch in range(num_batches):
        pace.begin(num_batches - batch - 1)
        while True:
            waiting += pace.starts(slots - len(waiting) - len(flying))
            while waiting and len(flying) < slots:
                heapq.heappush(flying, (clock + rng.choice([0.1, 1, 1, 2, 30]), waiting.pop(0)))
            verdict = pace.verdict()
            if verdict != "wait":
                break
            if flying:
                clock, number = heapq.heappop(flying)
                pace.end(outcome(number, seed, teaching, losing))
        if verdict == "lost":
            yield verdict, [], sorted(task.number for task in pace.last_draw)
            return
        chosen, used = pace.take()
        if pace.surplus:
            assert {*waiting, *(number for _, number in flying)} <= {*pace.surplus}, "all else has ended"
            waiting, flying = [], []
        yield verdict, [task.number for task in chosen], [task.number for task in used]
        waiting += pace.starts(slots - len(waiting) - len(flying))
        assert pace.max_staleness or not waiting, "nothing is in flight while the policy trains"


cases = {
    "size": st.integers(1, 5),
    "resample": st.sampled_from([1.0, 1.5, 2.0, 4.0]),
    "slots": st.integers(1, 20),
    "seed": st.integers(0, 10_000),
    "teaching": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    "losing": st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    "delays": st.integers(0, 10_000),
}


@given(**cases)
@settings(max_examples=300, deadline=None)
def test_batches_of_fresh_weights_do_not_depend_on_which_episode_ends_first(
    size: int, resample: float, slots: int, seed: int, teaching: float, losing: float, delays: int
):
    budget = int(size * resample)
    pace: Pace = Pace(size, budget)
    first = 0
    for verdict, chosen, used in streamed(pace, slots, 4, seed, teaching, losing, delays):
        expected, taught, tried = one_by_one(size, budget, first, seed, teaching, losing)
        assert (verdict, chosen) == (expected, taught)
        if verdict != "lost":
            assert used == tried and not pace.open, "nothing is played that the batch does not need"
        first += len(used)
        assert verdict == "lost" or pace.next_number == first, "what is surplus comes again in the next batch"


def test_tasks_are_started_early_by_the_share_that_taught_in_the_last_batch():
    pace: Pace = Pace(4, 8)
    pace.begin(num_later=2)
    assert list(pace.starts(idle=99)) == [0, 1, 2, 3], "nothing is known yet"
    for number in range(4):
        pace.end(Task(number, teaches=number < 2))
    assert list(pace.starts(idle=99)) == [4, 5]
    ready(pace, 4, 5)
    pace.take()
    pace.begin(num_later=1)
    assert list(pace.starts(idle=20, per_task=10)) == [6, 7, 8, 9], "the batch needs them, whatever is idle"
    assert list(pace.starts(idle=11, per_task=10)) == [10, 11], "2 of 3 taught: six are expected to be enough"
    ready(pace, 11, 6, 7, 9)
    assert pace.verdict() == "wait", "8 may still belong to the batch"
    ready(pace, 8)
    assert pace.verdict() == "complete"
    chosen, used = pace.take()
    assert [task.number for task in used] == [6, 7, 8, 9] == [task.number for task in chosen]
    assert pace.surplus == [10, 11] and pace.unfinished == [] and pace.next_number == 10
    assert list(pace.starts(idle=99)) == [], "no weights are there for the next batch yet"


def test_with_batches_ahead_no_task_is_started_early():
    pace: Pace = Pace(2, 8, max_staleness=1)
    pace.begin(num_later=9)
    list(pace.starts())
    for number in range(4):
        pace.end(Task(number, teaches=number > 1))
    pace.take()
    pace.begin(num_later=8)
    assert len(list(pace.starts(idle=99))) == 4


@given(ahead=st.integers(1, 3), **cases)
@settings(max_examples=300, deadline=None)
def test_with_batches_ahead_every_task_is_used_once_and_no_more_than_allowed_is_in_flight(
    ahead: int, size: int, resample: float, slots: int, seed: int, teaching: float, losing: float, delays: int
):
    pace: Pace = Pace(size, int(size * resample), max_staleness=ahead)
    seen: list[int] = []
    for verdict, chosen, used in streamed(pace, slots, 6, seed, teaching, losing, delays):
        assert len(chosen) <= size and set(chosen) <= set(used) and chosen == sorted(chosen)
        assert (len(chosen) > 0) == (verdict == "complete")
        if verdict != "lost":
            seen += used
            assert sorted([*seen, *pace.unfinished]) == list(range(pace.next_number)), "none is lost, none used twice"
            assert len(pace.unfinished) <= (ahead + 1) * size


def ready(pace: Pace, *numbers: int) -> None:
    for number in numbers:
        pace.end(Task(number, teaches=True))


def test_a_batch_ahead_is_in_flight_while_one_trains():
    pace: Pace = Pace(2, 4, max_staleness=1)
    pace.begin(num_later=9)
    assert list(pace.starts()) == [0, 1, 2, 3]
    ready(pace, 3, 0)
    assert pace.verdict() == "complete"
    assert [task.number for task in pace.take()[0]] == [0, 3], "nothing waits for the slowest task"
    assert list(pace.starts()) == [] and pace.unfinished == [1, 2]
    pace.begin(num_later=8)
    assert list(pace.starts()) == [4, 5]


def test_what_may_be_too_old_for_the_next_batch_is_taken_first():
    pace: Pace = Pace(2, 4, max_staleness=1)
    pace.begin(num_later=9)
    list(pace.starts())
    for number, age in ((0, 0), (1, 1), (2, 0), (3, 1)):
        pace.end(Task(number, teaches=True, age=age))
    assert [task.number for task in pace.take()[0]] == [1, 3] and pace.unfinished == [0, 2]


def test_tasks_that_were_unfinished_at_a_kill_come_first():
    pace: Pace = Pace(2, 4, max_staleness=1)
    pace.restore(next_number=9, unfinished=[7, 4])
    assert pace.unfinished == [4, 7]
    pace.begin(num_later=9)
    assert list(pace.starts()) == [4, 7, 9, 10]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_lost_task_is_not_replaced_before_the_environment_has_finished_an_episode(size: int):
    pace: Pace = Pace(size, 4 * size)
    pace.begin(num_later=0)
    started = list(pace.starts())
    for number in started:
        pace.end(Task(number, teaches=False, num_lost=EPISODES))
    started += pace.starts()
    assert len(started) == max(2, size)
