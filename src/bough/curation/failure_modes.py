"""Mistakes that a rule can see in a trajectory, one rule for each reason.

A rule looks at one turn and what was before it. What it finds is a suspicion: it
becomes a pair only where somebody knows better in that very state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from bough.config.curation import Reason
from bough.curation.locations import Locations, kind, names
from bough.curation.states import did, gained, without_effect
from bough.types import Trajectory, Turn

Rule = Callable[[Trajectory, int], bool]

# Cycles longer than this are hardly told from a search that goes round.
LONGEST_CYCLE = 4
_DONE = re.compile(r"^\W*(?:the )?task (?:is |has been |was )?(?:succeeded|completed?|done|finished|solved)\W*$", re.I)
_TASK = re.compile(r"your task is to: *(.+)", re.I)
_SEARCH = re.compile(r"^(?:go to|open) (\w+ \d+)$")
_TAKE = re.compile(r"^take (\w+ \d+) from (\w+ \d+)$")
_PUT = re.compile(r"^(?:move|put) (\w+ \d+) (?:to|in/on|in|on) (\w+ \d+)$")
_LID = re.compile(r"^(open|close) (\w+ \d+)$")


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a turn."""

    turn: int
    reason: Reason


def loop(trajectory: Trajectory, at: int) -> bool:
    """Does again what was just done, one action or a cycle of them, sees the same and gets no further."""
    turns = trajectory.turns
    if at and did(turns[at]) == did(turns[at - 1]) and without_effect(turns[at]):
        return True
    for length in range(1, min(LONGEST_CYCLE, (at + 1) // 2) + 1):
        middle = at + 1 - length
        before, again = turns[middle - length : middle], turns[middle : at + 1]
        if all(map(_same, before, again)) and not gained(turns[middle - 1 : at + 1]):
            return True
    return False


def premature_success(trajectory: Trajectory, at: int) -> bool:
    """Says that the task is done when it is not."""
    turns = trajectory.turns
    last = at == len(turns) - 1
    if last and trajectory.stop == "premature_success":
        return True
    return not (last and trajectory.success) and claims(turns[at])


def claims(turn: Turn) -> bool:
    """Whether a turn says that the task is done."""
    return _DONE.match(did(turn)) is not None


def invalid_action(trajectory: Trajectory, at: int) -> bool:
    """A reply that the world could not act on."""
    return without_effect(trajectory.turns[at])


def wasted_step(trajectory: Trajectory, at: int) -> bool:
    """Undoes the step before: puts back what was just taken, closes what was just opened."""
    if at == 0 or any(map(without_effect, trajectory.turns[at - 1 : at + 1])):
        return False
    before, after = (did(turn).strip().lower() for turn in trajectory.turns[at - 1 : at + 1])
    for first, second in ((_TAKE, _PUT), (_PUT, _TAKE)):
        taken, put = first.match(before), second.match(after)
        if taken and put:
            return taken.groups() == put.groups()
    lids = _LID.match(before), _LID.match(after)
    return bool(lids[0] and lids[1] and lids[0][1] != lids[1][1] and lids[0][2] == lids[1][2])


def implausible_location(trajectory: Trajectory, at: int, locations: Locations) -> bool:
    """Searches where the thing is hardly ever found, while a place where it may be has not been looked at.

    Places that the task names are where the thing goes, and once it was seen nobody
    searches any more.
    """
    search = _SEARCH.match(did(trajectory.turns[at]).strip().lower())
    said = "\n".join(message.content for message in trajectory.start).lower()
    task = _TASK.search(said)
    if search is None or task is None:
        return False
    words = re.findall(r"\w+", task[1])
    thing = next((word for word in words if word in locations.things), None)
    if thing is None or kind(search[1]) in words or not locations.implausible(thing, kind(search[1])):
        return False
    past = trajectory.turns[:at]
    if any(kind(name) == thing for turn in past for message in turn.observation for name in names(message.content)):
        return False
    visited = {match[1] for turn in past if (match := _SEARCH.match(did(turn).strip().lower()))}
    return any(kind(name) in locations.likely[thing] and name not in visited for name in names(said))


def rules(reasons: Iterable[Reason], locations: Locations) -> dict[Reason, Rule]:
    """The rules for `reasons`, the most telling first: a turn is blamed for one thing only."""
    every: dict[Reason, Rule] = {
        "premature_success": premature_success,
        "loop": loop,
        "invalid_action": invalid_action,
        "wasted_step": wasted_step,
        "implausible_location": partial(implausible_location, locations=locations),
    }
    wanted = set(reasons)
    return {reason: rule for reason, rule in every.items() if reason in wanted}


def mistakes(trajectory: Trajectory, chosen: dict[Reason, Rule]) -> Iterator[Mistake]:
    """The mistakes of a trajectory, in order."""
    for at in range(len(trajectory.turns)):
        reason = next((reason for reason, rule in chosen.items() if rule(trajectory, at)), None)
        if reason is not None:
            yield Mistake(at, reason)


def _same(left: Turn, right: Turn) -> bool:
    return did(left) == did(right) and left.observation == right.observation
