"""Pairs of one round: the same state, two next replies.

Attempts at one task form a tree of states. The parting of a failure is where it leaves
the tree's last way that led to success: some success went through that state, none
went on as the failure did. The chosen reply is that of the shortest such success.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from bough.curation.posterior import Rate
from bough.curation.source import SourcedTrajectory
from bough.curation.states import State, did, states, without_effect
from bough.ledger import Ledger
from bough.types import Pair, Trajectory, Turn, conversation

REASON = "parting"


@dataclass
class Crossing:
    """A state that attempts went through: who succeeded, and how often each action did."""

    successes: list[tuple[SourcedTrajectory, int]] = field(default_factory=list)
    rates: dict[str, Rate] = field(default_factory=dict)


class StateTree:
    """The states of all attempts whose outcome is known."""

    def __init__(self, filed: Sequence[SourcedTrajectory]) -> None:
        self.crossings: defaultdict[State, Crossing] = defaultdict(Crossing)
        for item in filed:
            if item.trajectory.success is not None:
                self._add(item, item.trajectory.success)

    def _add(self, item: SourcedTrajectory, success: bool) -> None:
        counted = set()
        for at, (state, turn) in enumerate(zip(states(item.trajectory), item.trajectory.turns, strict=False)):
            crossing, action = self.crossings[state], did(turn)
            if success and not without_effect(turn):
                crossing.successes.append((item, at))
            # An attempt that comes to a state again and does the same again is still one attempt.
            if (state, action) not in counted:
                counted.add((state, action))
                crossing.rates[action] = crossing.rates.get(action, Rate(0, 0)) + Rate(int(success), 1)

    def way_on(
        self, state: State, not_as: str, sound: Callable[[Turn], bool] = lambda _: True
    ) -> tuple[SourcedTrajectory, int] | None:
        """The success that was nearest to its end in this state and went on in another, sound way, and its turn."""
        crossing = self.crossings.get(state)
        if crossing is None:
            return None
        others = sorted(crossing.successes, key=lambda other: len(other[0].trajectory.turns) - other[1])
        turns = ((item.trajectory.turns[at], item, at) for item, at in others)
        return next(((item, at) for turn, item, at in turns if did(turn) != not_as and sound(turn)), None)


def round_pairs(filed: Sequence[SourcedTrajectory], ledger: Ledger) -> list[Pair]:
    """One pair for every failure that parts from a success; those that do the same there make one pair."""
    tree, seen, found = StateTree(filed), set(), []
    for item in filed:
        if item.trajectory.success is not False:
            continue
        parting = _parting(item.trajectory, tree)
        if isinstance(parting, str):
            ledger.drop(parting)
            continue
        at, state = parting
        turn = item.trajectory.turns[at]
        if (state, did(turn)) in seen:
            ledger.drop("duplicate")
            continue
        way = tree.way_on(state, did(turn))
        if way is None:  # the one to learn from did here what every success did
            ledger.drop("never_part")
            continue
        seen.add((state, did(turn)))
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
    """Turn `at` of a trajectory (or `worse` in its stead) against a better one, after the trajectory's history."""
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
    """A turn as it stands after another trajectory's history.

    Its exact tokens answer the history they were sampled after: they stay where that is
    the same, message for message, and go where it is not.
    """
    same = conversation(origin.start, origin.turns[:at]) == conversation(to.start, to.turns[:to_at])
    return turn if same else turn.model_copy(update={"call": None})


def _parting(trajectory: Trajectory, tree: StateTree) -> tuple[int, State] | str:
    """The turn at which the way to success was left and the state it was left in, or why there is none."""
    path = states(trajectory)[:-1]
    at = next((t for t in reversed(range(len(path))) if tree.crossings[path[t]].successes), None)
    if at is None:
        return "no_success_came_by"
    if tree.crossings[path[at]].rates[did(trajectory.turns[at])].successes:
        # A success went on alike: this one was cut short before it did anything else.
        return "never_part"
    # Replies that could not be acted on leave the state as it is; the first of them is the one to learn from.
    return (path.index(path[at]) if without_effect(trajectory.turns[at]) else at), path[at]


def _parting_pair(item: SourcedTrajectory, at: int, way: tuple[SourcedTrajectory, int], crossing: Crossing) -> Pair:
    other, other_at = way
    turn = other.trajectory.turns[other_at]
    better, worse = crossing.rates[did(turn)], crossing.rates[did(item.trajectory.turns[at])]
    info: dict[str, JsonValue] = {
        "chosen": {**other.place, "turn": other_at},
        "plays": {"chosen": [better.successes, better.plays], "rejected": [worse.successes, worse.plays]},
    }
    return round_pair(
        item,
        at,
        moved(turn, other.trajectory, other_at, item.trajectory, at),
        reason=REASON,
        margin=better.mean - worse.mean,
        info=info,
    )
