from typing import Any

from bough.curation.demonstrations import GroupsConfig, groups
from bough.curation.source import SourcedTrajectory
from bough.ledger import Ledger
from bough.types import Group
from tests.curation.records import episode


def made(*filed: SourcedTrajectory, **settings: Any) -> tuple[list[Group], Ledger]:
    ledger = Ledger("attempts")
    found = groups(filed, GroupsConfig(file="in.jsonl", output="out.jsonl", **settings), ledger)
    assert ledger.came_in == len(filed) and ledger.kept == sum(len(group.attempts) for group in found)
    return found, ledger


def attempt(name: str, reward: float | None, task: str = "t") -> SourcedTrajectory:
    return episode(name, name, task=task, rewards={"outcome": reward})


def test_the_attempts_at_one_task_make_a_group_with_its_sources():
    [group], ledger = made(attempt("a", 1.0), attempt("x", 1.0, "u"), attempt("b", 0.0))
    assert [a.id for a in group.attempts] == ["a", "b"] and ledger.dropped == {"too_few_scored": 1}
    assert group.info == {
        "rule": "group", "scored": 2,
        "sources": [
            {"file": "a.jsonl", "line": 1, "trajectory": "a"}, {"file": "b.jsonl", "line": 1, "trajectory": "b"}
        ],
    }  # fmt: skip


def test_groups_that_teach_nothing_are_dropped_unless_asked_for():
    flat = [attempt("a", 1.0), attempt("b", 1.0)]
    assert made(*flat)[1].dropped == {"zero_variance": 2}
    assert len(made(*flat, flat=True)[0]) == 1


def test_an_attempt_that_was_not_scored_stays_but_does_not_count():
    attempts = attempt("a", 1.0), attempt("b", 0.0), attempt("c", None)
    [group], _ = made(*attempts)
    assert len(group.attempts) == 3 and group.info["scored"] == 2
    assert made(*attempts, min_size=3)[1].dropped == {"too_few_scored": 3}


def test_many_attempts_make_several_groups_of_a_size():
    many = [attempt(str(number), float(number % 2)) for number in range(5)]
    found, ledger = made(*many, size=2)
    assert [[a.id for a in group.attempts] for group in found] == [["0", "1"], ["2", "3"]]
    assert ledger.dropped == {"too_few_scored": 1}
    assert made(*many, size=3)[1].dropped == {"too_few_attempts": 2}


def test_the_reward_asked_for_decides():
    attempts = [episode(n, n, rewards={"outcome": 1.0, "total": t}) for n, t in (("a", 0.1), ("b", 0.2))]
    assert len(made(*attempts)[0]) == 1
    assert made(*attempts, reward="outcome")[1].dropped == {"zero_variance": 2}
