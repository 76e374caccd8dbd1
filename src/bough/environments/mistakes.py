"""Mistakes that a rule can find in a trajectory, one rule per reason.

The rules here know no environment's texts; an environment adds its own
(`MistakeRules`). A rule looks at one turn and the turns before it. What it
finds is a suspicion: curation makes a pair of it only where a better reply in that very
state is known. Evaluation counts it, and the reward `mistakes` takes it off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from bough.environments.base import MistakeRules, Rule, action_of
from bough.types import Trajectory, Turn

PLAIN = MistakeRules()
# Longer cycles are hard to tell from a search that revisits places.
LONGEST_CYCLE = 4


@dataclass(frozen=True)
class Mistake:
    """Which turn is wrong, and why."""

    turn: int
    reason: str


def premature_success(trajectory: Trajectory, at: int, rules: MistakeRules = PLAIN) -> bool:
    """Says that the task is done when it is not."""
    last = at == len(trajectory.turns) - 1
    if last and trajectory.stop == "premature_success":
        return True
    return not (last and trajectory.success) and rules.claims_success(trajectory.turns[at])


def loop(trajectory: Trajectory, at: int, rules: MistakeRules = PLAIN) -> bool:
    """Repeats the last action or a cycle of actions, sees the same and makes no progress."""
    turns = trajectory.turns
    if at and action_of(turns[at]) == action_of(turns[at - 1]) and rules.without_effect(turns[at]):
        return True
    for length in range(1, min(LONGEST_CYCLE, (at + 1) // 2) + 1):
        middle = at + 1 - length
        before, again = turns[middle - length : middle], turns[middle : at + 1]
        same = (
            (action_of(a), a.observation) == (action_of(b), b.observation) for a, b in zip(before, again, strict=True)
        )
        if all(same) and not gained(turns[middle - 1 : at + 1]):
            return True
    return False


def invalid_action(trajectory: Trajectory, at: int, rules: MistakeRules = PLAIN) -> bool:
    """A reply that had no effect on the environment, or was not written as it should be."""
    turn = trajectory.turns[at]
    return turn.error == "malformed" or rules.without_effect(turn)


def all_rules(rules: MistakeRules) -> dict[str, Rule]:
    """Every rule that applies, the most telling first; an environment may replace those of this module."""
    generic: dict[str, Rule] = {
        "premature_success": partial(premature_success, rules=rules),
        "loop": partial(loop, rules=rules),
        "invalid_action": partial(invalid_action, rules=rules),
    }
    return generic | dict(rules.own())


def mistakes(trajectory: Trajectory, rules: Mapping[str, Rule]) -> Iterator[Mistake]:
    """The mistakes of a trajectory, in order. A turn is blamed for one thing: the first rule that applies."""
    for at in range(len(trajectory.turns)):
        reason = next((reason for reason, rule in rules.items() if rule(trajectory, at)), None)
        if reason is not None:
            yield Mistake(at, reason)


def chosen(rules: Mapping[str, Rule], reasons: Iterable[str]) -> dict[str, Rule]:
    """The rules for `reasons`; without any, all of them."""
    wanted = set(reasons)
    return {reason: rule for reason, rule in rules.items() if not wanted or reason in wanted}


def gained(turns: Sequence[Turn]) -> bool:
    """Whether progress rose within `turns`, as far as the environment reports it."""
    known = [turn.progress for turn in turns if turn.progress is not None]
    return any(after > before for before, after in pairwise(known))
