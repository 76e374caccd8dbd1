"""Who is in the next generation: members that live on, and the parents of children.

| selection  | next generation                                                                          |
|------------|------------------------------------------------------------------------------------------|
| tournament | the fittest, if elitism is on; every other place goes to a child of a tournament's winner |
| truncation | the worst share is replaced by children of the best share (PBT)                           |
| confident  | a member is replaced only if a sequential test shows that another one is better           |
| halving    | the better half; no children                                                              |

Ties are broken by name, so a selection depends on the scores and the generator alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from bough.evaluation.paired import holm
from bough.evaluation.sequential import anytime_p
from bough.evolution.score import Score, differences

Scores = Mapping[str, Score]


@dataclass(frozen=True)
class Place:
    """A place in the next generation: the member itself, if `lives`, or a child of it."""

    member: str
    lives: bool


def ranked(scores: Scores) -> list[str]:
    """The members, fittest first."""
    return sorted(scores, key=lambda name: (-scores[name].fitness, name))


def tournament(scores: Scores, *, size: int, elitism: bool, rng: random.Random) -> list[Place]:
    """Every place goes to the child of the fittest of `size` members, drawn with replacement.

    With elitism the first place is that of the fittest member itself.
    """
    order = ranked(scores)
    place = {name: number for number, name in enumerate(order)}
    elite = [Place(order[0], lives=True)] if elitism else []
    winners = [min(rng.choices(order, k=size), key=place.__getitem__) for _ in range(len(order) - len(elite))]
    return [*elite, *(Place(name, lives=False) for name in winners)]


def truncation(scores: Scores, *, share: float, rng: random.Random) -> list[Place]:
    """The worst `share` of the members are replaced by children of members of the best `share`."""
    order = ranked(scores)
    count = min(max(1, round(share * len(order))), len(order) // 2)
    best, rest = order[:count], order[: len(order) - count]
    return [*(Place(name, lives=True) for name in rest), *(Place(rng.choice(best), lives=False) for _ in range(count))]


def confident(scores: Scores, *, alpha: float) -> list[Place]:
    """A member that is shown to be worse than another is replaced by a child of the fittest that is better than it.

    Every ordered pair of members is compared on the tasks that both have, by a test that holds
    at any number of tasks. All pairs together (Holm) err in at most a share `alpha` of generations:
    only then a member is replaced by the child of one that is not better.
    """
    order = ranked(scores)
    pairs = list(permutations(order, 2))
    found = [anytime_p(differences(scores[worse], scores[better]), one_sided=True) for worse, better in pairs]
    better_than: dict[str, list[str]] = {}
    for (worse, better), p in zip(pairs, holm(found), strict=True):
        if p <= alpha:
            better_than.setdefault(worse, []).append(better)
    lives = [Place(name, lives=True) for name in order if name not in better_than]
    # `order` is fittest first, and so are the members that each is worse than.
    return [*lives, *(Place(better_than[name][0], lives=False) for name in order if name in better_than)]


def halving(scores: Scores) -> list[Place]:
    """The better half of the members, at least one."""
    order = ranked(scores)
    return [Place(name, lives=True) for name in order[: max(1, len(order) // 2)]]


def decided(places: Sequence[Place]) -> bool:
    """Whether a confident selection has left a single member alive: more tasks could not change it."""
    return sum(place.lives for place in places) <= 1
