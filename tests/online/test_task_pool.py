import json
from collections import Counter
from pathlib import Path

import pytest

from bough.data.reader import read
from bough.methods.grpo import GRPOConfig, train_grpo
from bough.online.schedule import TaskPool
from bough.types import Group, Message, Task, Trajectory


def attempts(*successes: bool | None) -> list[Trajectory]:
    start = [Message(role="user", content="Begin.")]
    return [Trajectory(id="t#0", task=Task(id="t"), start=start, turns=[], success=one) for one in successes]


def test_the_weight_is_largest_at_a_success_rate_of_one_half():
    pool = TaskPool(4, seed=0)
    assert pool.weight(0) == 1.0
    pool.seen = {0: (4, 8), 1: (0, 8), 2: (8, 8), 3: (2, 8)}
    assert [pool.weight(task) for task in range(4)] == pytest.approx([1.0, 0.36, 0.36, 0.84])


def test_tasks_are_drawn_by_their_weight():
    pool = TaskPool(3, seed=1)
    pool.seen = {0: (0, 98), 1: (49, 98), 2: (98, 98)}  # weights 0.04, 1, 0.04
    drawn = Counter(pool.choose(number) for number in range(2_000))
    assert drawn[1] > 1_800 and min(drawn[0], drawn[2]) > 30


def test_a_number_keeps_its_task_when_success_rates_change():
    pool = TaskPool(50, seed=2)
    before = [pool.choose(number) for number in range(20)]
    pool.seen = dict.fromkeys(range(25), (0, 1000))
    assert [pool.choose(number) for number in range(20)] == before
    again = TaskPool(50, seed=2)
    again.restore(json.loads(json.dumps(pool.state())))
    assert [again.choose(number) for number in range(60)] == [pool.choose(number) for number in range(60)]


def test_attempts_of_unknown_success_and_of_other_numbers_say_nothing():
    pool = TaskPool(1, seed=0)
    pool.choose(5)
    pool.note(5, attempts(True, None, False, True))
    pool.note(6, attempts(True))
    assert pool.seen == {0: (2, 3)} and not pool.chosen


def groups(folder: Path) -> list[Group]:
    found = [one for number in range(2) for one in read(folder / f"rollouts/{number:05}.jsonl")]
    return [one for one in found if isinstance(one, Group)]


def test_a_run_draws_its_tasks_again_and_remembers_how_they_went(tmp_path: Path):
    values = {
        "model": "tiny", "environment": "tests.online.letters:Letters", "task_pool": 2, "max_new_tokens": 4,
        "batch_size": 2, "group_size": 4, "watch": False, "save_steps": 1,
    }  # fmt: skip
    train_grpo(GRPOConfig(output_dir=tmp_path / "whole", max_steps=2, **values))
    train_grpo(GRPOConfig(output_dir=tmp_path / "cut", max_steps=1, **values))
    train_grpo(GRPOConfig(output_dir=tmp_path / "cut", max_steps=2, resume=True, **values))
    whole, cut = (groups(tmp_path / name) for name in ("whole", "cut"))
    assert len(whole) == 4 and {group.task.id for group in whole} <= {"train-42-0", "train-42-1"}
    replies = [[attempt.turns[0].reply.content for attempt in group.attempts] for group in whole]
    assert all(left != right for i, left in enumerate(replies) for right in replies[:i]), "each draw has its own seeds"
    assert [group.task for group in cut] == [group.task for group in whole]
    noted, again = (json.loads((tmp_path / name / "rollouts/00001.json").read_text()) for name in ("whole", "cut"))
    assert noted["task_pool"] == again["task_pool"]
    assert sum(count for _, _, count in noted["task_pool"]["seen"]) >= 16
    assert "task_pool" not in (tmp_path / "whole/metrics.jsonl").read_text()


def test_a_number_that_was_not_used_is_chosen_by_the_success_rates_of_its_next_batch():
    pool = TaskPool(2, seed=0)
    number = next(n for n in range(99) if pool.choose(n) == 0)
    pool.seen[0] = (10**9, 10**9)  # nothing is to be learnt from task 0 any more
    assert pool.choose(number) == 0, "it is fixed until it is used"
    pool.forget(number)
    assert pool.choose(number) == 1
