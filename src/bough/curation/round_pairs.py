"""Pairs of one turn: the same state, two next replies.

Attempts at one task form a tree of states. A failure parts from success in the last
state that some success went through, with an action that no success took there. The
chosen reply is that of the success that was nearest to its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from bough.curation.lookup import RulesOf
from bough.curation.posterior import Rate
from bough.curation.source import SourcedTrajectory
from bough.curation.states import State, states
from bough.environments.rules import MistakeRules, action_of
from bough.ledger import Ledger
from bough.types import Pair, Trajectory, Turn, conversation

PARTING = "parting"


@dataclass
class Crossing:
    """A state that attempts went through: the successes, and the success rate of each action."""

    successes: list[tuple[SourcedTrajectory, int]] = field(default_factory=list)
    rates: dict[str, Rate] = field(default_factory=dict)


class StateTree:
    """The states of all attempts whose outcome is known."""

    def __init__(self, filed: Sequence[SourcedTrajectory], rules_of: RulesOf) -> None:
        self.rules_of = rules_of
        self.crossings: defaultdict[State, Crossing] = defaultdict(Crossing)
        for item in filed:
            if item.trajectory.success is not None:
                self._add(item, item.trajectory.success)

    def _add(self, item: SourcedTrajectory, success: bool) -> None:
        counted, rules = set(), self.rules_of(item)
        for at, (state, turn) in enumerate(zip(states(item.trajectory, rules), item.trajectory.turns, strict=False)):
            crossing, action = self.crossings[state], action_of(turn)
            if success and turn.error is None and not rules.without_effect(turn):
                crossing.successes.append((item, at))
            # An attempt that returns to a state and repeats its action there is still one attempt.
            if (state, action) not in counted:
                counted.add((state, action))
                crossing.rates[action] = crossing.rates.get(action, Rate(0, 0)) + Rate(int(success), 1)

    def way_on(
        self, state: State, not_as: str, sound: Callable[[Turn], bool] = lambda _: True
    ) -> tuple[SourcedTrajectory, int] | None:
        """The success nearest to its end that took another, sound action in this state, and the number of its turn."""
        crossing = self.crossings.get(state)
        if crossing is None:
            return None
        others = sorted(crossing.successes, key=lambda other: len(other[0].trajectory.turns) - other[1])
        turns = ((item.trajectory.turns[at], item, at) for item, at in others)
        return next(((item, at) for turn, item, at in turns if action_of(turn) != not_as and sound(turn)), None)


def round_pairs(filed: Sequence[SourcedTrajectory], ledger: Ledger, *, rules_of: RulesOf) -> list[Pair]:
    """One pair for every failure that parts from a success; failures with the same action there make one pair."""
    tree, seen, found = StateTree(filed, rules_of), set(), []
    for item in filed:
        if item.trajectory.success is not False:
            continue
        parting = _parting(item.trajectory, tree, rules_of(item))
        if isinstance(parting, str):
            ledger.drop(parting)
            continue
        at, state = parting
        action = action_of(item.trajectory.turns[at])
        if (state, action) in seen:
            ledger.drop("duplicate")
            continue
        way = tree.way_on(state, action)
        if way is None:  # every success took this action here
            ledger.drop("never_part")
            continue
        seen.add((state, action))
        ledger.keep()
        found.append(_parting_pair(item, at, way, tree.crossings[state]))
    return found


def round_pair(
    item: SourcedTrajectory,
    at: int,
    better: Turn,
    worse: Turn | None = None,
    *,
    reason: str,
    margin: float | None = None,
    info: dict[str, JsonValue],
) -> Pair:
    """A better reply against turn `at` of a trajectory (or against `worse`), after the trajectory's history."""
    trajectory = item.trajectory
    place: dict[str, JsonValue] = {"rule": reason, "turn": at, "history": item.place}
    return Pair(
        task=trajectory.task,
        start=conversation(trajectory.start, trajectory.turns[:at]),
        chosen=[better],
        rejected=[worse or trajectory.turns[at]],
        tools=trajectory.tools,
        reason=reason,
        margin=margin,
        info=place | info,
    )


def moved(turn: Turn, origin: Trajectory, at: int, to: Trajectory, to_at: int) -> Turn:
    """A turn as it follows another trajectory's history.

    Its exact tokens belong to the history they were sampled after: they are kept if the
    two histories are equal message for message, else dropped.
    """
    same = conversation(origin.start, origin.turns[:at]) == conversation(to.start, to.turns[:to_at])
    return turn if same else turn.model_copy(update={"call": None})


def _parting(trajectory: Trajectory, tree: StateTree, rules: MistakeRules) -> tuple[int, State] | str:
    """The turn and the state in which the trajectory left the way to success, or why there is none."""
    path = states(trajectory, rules)[:-1]
    at = next((t for t in reversed(range(len(path))) if tree.crossings[path[t]].successes), None)
    if at is None:
        return "no_success_came_by"
    if tree.crossings[path[at]].rates[action_of(trajectory.turns[at])].successes:
        # A success took the same action: this attempt was cut short before it did anything else.
        return "never_part"
    # Invalid replies do not change the state; the first of them is the one to learn from.
    return (path.index(path[at]) if rules.without_effect(trajectory.turns[at]) else at), path[at]


def _parting_pair(item: SourcedTrajectory, at: int, way: tuple[SourcedTrajectory, int], crossing: Crossing) -> Pair:
    other, other_at = way
    turn = other.trajectory.turns[other_at]
    better, worse = crossing.rates[action_of(turn)], crossing.rates[action_of(item.trajectory.turns[at])]
    info: dict[str, JsonValue] = {
        "chosen": {**other.place, "turn": other_at},
        "plays": {"chosen": [better.successes, better.plays], "rejected": [worse.successes, worse.plays]},
    }
    return round_pair(
        item,
        at,
        moved(turn, other.trajectory, other_at, item.trajectory, at),
        reason=PARTING,
        margin=better.mean - worse.mean,
        info=info,
    )
