"""How much better than its group an attempt, a step or a turn was.

Three levels, all plain numbers: one advantage per attempt (`group_advantages`), that
advantage spread over the attempt's steps by their rewards (`step_advantages`), or one
advantage per turn from the turns' own rewards (`turn_advantages`). `call_advantages`
takes a whole group at the level that is asked for. Comparing steps by the state they start in
is in `state_credit.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from statistics import mean, stdev
from typing import Generic, Literal, NamedTuple, TypeVar

from bough.errors import RowError
from bough.rewards.score import score
from bough.types import Group, Trajectory

Level = Literal["attempt", "step", "turn"]
Dropped = Literal["too_few_scored", "zero_variance"]
StepFormula = Literal["bounded", "seed"]
Value = TypeVar("Value")

# Rewards that differ by less than this share of their size are rounding, not signal: dividing
# by their standard deviation would blow 0.1 + 0.2 against 0.3 up to a full-sized advantage.
TOLERANCE = 1e-6


class Advantages(NamedTuple, Generic[Value]):
    """One value per attempt, in the group's order. `dropped` says why the group teaches nothing, if so."""

    values: list[Value]
    dropped: Dropped | None = None


def call_advantages(
    group: Group,
    *,
    reward: str | None = None,
    level: Level = "attempt",
    formula: StepFormula = "bounded",
    normalise: bool = True,
) -> list[list[float | None]]:
    """An advantage for every turn of every attempt; None where it was not scored.

    RowError where all attempts are alike.
    """
    rewards = [score(attempt, reward) for attempt in group.attempts]
    if level == "turn":
        by_turn = turn_advantages(
            [turn_rewards(a, r) for a, r in zip(group.attempts, rewards, strict=True)], normalise=normalise
        )
        if by_turn.dropped:
            raise RowError(by_turn.dropped, "fewer than two attempts are scored, or their turns do not differ")
        return by_turn.values
    whole = group_advantages(rewards, normalise=normalise)
    if whole.dropped:
        raise RowError(whole.dropped, "fewer than two attempts are scored, or their rewards do not differ")
    spread: list[list[float | None]] = []
    for attempt, advantage in zip(group.attempts, whole.values, strict=True):
        if advantage is None:
            spread.append([None] * len(attempt.turns))
        elif level == "step":
            spread.append([*step_advantages(advantage, [turn.reward for turn in attempt.turns], formula)])
        else:
            spread.append([advantage] * len(attempt.turns))
    return spread


def group_advantages(rewards: Sequence[float | None], *, normalise: bool = True) -> Advantages[float | None]:
    """A_i = (r_i − mean) / std over a group's attempts (GRPO, 2402.03300).

    `normalise=False` leaves out the division, which favours the easiest and the hardest tasks
    (Dr. GRPO, 2503.20783).

    mean and std run over the scored attempts; std is the sample's (n − 1), as in TRL and verl,
    with nothing added to it. An attempt that was not scored (None) is kept out of both and has
    the advantage None: a crash is not a zero, and must not move the baseline.

    Dropped: "too_few_scored", under two scored attempts, no baseline, all None;
    "zero_variance", rewards alike, all scored advantages 0.
    """
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2:
        return Advantages([None] * len(rewards), "too_few_scored")
    baseline = mean(scored)
    if negligible((reward - baseline for reward in scored), beside=scored):
        return Advantages([None if reward is None else 0.0 for reward in rewards], "zero_variance")
    scale = stdev(scored) if normalise else 1.0
    return Advantages([None if reward is None else (reward - baseline) / scale for reward in rewards])


def step_advantages(advantage: float, rewards: Sequence[float | None], formula: StepFormula = "bounded") -> list[float]:
    """One attempt's advantage A spread over its steps by their rewards r_j.

    "bounded" (the default):

        d_j = (r_j − mean r) / mean |r|         how far above its trajectory's mean a step is
        g_j = d_j / max(1, max_k |d_k|)         the same, in [−1, 1]
        A_j = A + |A| · g_j

    - Better steps are never worse off, for either sign of A: g grows with r and |A| ≥ 0, so
      r_j ≥ r_k gives A_j ≥ A_k. In a bad attempt the good steps are punished less.
    - The steps average A: Σ d_j = 0, hence Σ g_j = 0.
    - Bounded: |g| ≤ 1, so A_j lies between 0 and 2A and no step's sign flips.
    - Equal rewards give A to each (all d_j are 0). The unit of the rewards does not matter.
    - With A > 0, rewards ≥ 0 and none above twice their mean, it is exactly the seed's formula.

    "seed": A_j = A · r_j / mean r, literally (knowlyr-trainer). For A < 0 it punishes better
    steps more, a negative mean flips signs, a mean near 0 has no bound; a mean of 0 gives A to each.

    A step that was not scored (None) gets A and stays out of the means. Means are over steps,
    not tokens: a long step weighs like a short one.
    """
    scored = [reward for reward in rewards if reward is not None]
    largest = max(map(abs, scored), default=0.0)
    if largest == 0:
        return [advantage] * len(rewards)
    # In units of a power of two near the largest reward: exact, and no mean overflows or vanishes.
    _, exponent = math.frexp(largest)
    scaled = [None if reward is None else math.ldexp(reward, -exponent) for reward in rewards]
    known = [reward for reward in scaled if reward is not None]
    centre = mean(known)
    if formula == "seed":
        return [advantage if reward is None or not centre else advantage * reward / centre for reward in scaled]
    size = mean(map(abs, known))
    widest = max(1.0, max(abs(reward - centre) / size for reward in known))
    return [
        advantage if reward is None else advantage + abs(advantage) * ((reward - centre) / size / widest)
        for reward in scaled
    ]


def turn_advantages(
    rewards: Sequence[Sequence[float | None]], *, discount: float = 1.0, normalise: bool = True
) -> Advantages[list[float | None]]:
    """One advantage per turn, from each attempt's turn rewards: `rewards[i][t]`, lengths may differ.

        G_it = Σ_{k ≥ t} discount^(k − t) · r_ik        the return from turn t on
        A_it = (G_it − b_t) / s

    b_t is the mean of G_jt over the attempts that reach turn t if two or more do, else the mean
    of all returns of the group. s is the standard deviation of all G_it − b_t of the group, one
    scale for every turn, so that a turn at which nothing was at stake is not blown up (1 with
    `normalise=False`). With one turn each this is `group_advantages`. After MT-GRPO (2505.11821);
    `state_credit.py` groups by equal states instead of equal turn numbers.

    A turn that was not scored (None) adds nothing to a return. An attempt without any scored
    turn is unscored: its advantages are None and no baseline knows it. What an attempt's reward
    has beyond its turns' belongs to the last turn; the caller adds it there. Dropped as in
    `group_advantages`.
    """
    returns = [returns_to_go(turns, discount) for turns in rewards]
    scored = [attempt for attempt in returns if attempt is not None]
    if len(scored) < 2:
        return Advantages([[None] * len(turns) for turns in rewards], "too_few_scored")
    overall = mean(chain.from_iterable(scored))
    by_turn = ([value for value in column if value is not None] for column in zip_longest(*scored))
    baselines = [mean(reached) if len(reached) >= 2 else overall for reached in by_turn]
    centred = [
        None if attempt is None else [value - baseline for value, baseline in zip(attempt, baselines, strict=False)]
        for attempt in returns
    ]
    flat = list(chain.from_iterable(attempt for attempt in centred if attempt is not None))
    alike = negligible(flat, beside=chain.from_iterable(scored))
    scale = stdev(flat) if normalise and not alike else 1.0
    values: list[list[float | None]] = [
        [None] * len(turns) if attempt is None else [0.0 if alike else value / scale for value in attempt]
        for turns, attempt in zip(rewards, centred, strict=True)
    ]
    return Advantages(values, "zero_variance" if alike else None)


def turn_rewards(attempt: Trajectory, outcome: float | None) -> list[float | None]:
    """The rewards of the turns; what the attempt's own has beyond them is on the last, so that they add up to it.

    An attempt whose reward could not be computed is not scored; one without any reward has those of its turns.
    """
    rewards = [turn.reward for turn in attempt.turns]
    if outcome is None:
        return [None] * len(rewards) if attempt.rewards else rewards
    if rewards:
        rewards[-1] = (rewards[-1] or 0.0) + (outcome - sum(reward for reward in rewards if reward is not None))
    return rewards


def returns_to_go(turns: Sequence[float | None], discount: float) -> list[float] | None:
    """The discounted return from each turn on; None if no turn was scored."""
    if all(reward is None for reward in turns):
        return None
    returns: list[float] = []
    following = 0.0
    for reward in reversed(turns):
        following = (reward or 0.0) + discount * following
        returns.append(following)
    return returns[::-1]


def negligible(deviations: Iterable[float], *, beside: Iterable[float]) -> bool:
    """Whether deviations are rounding errors of values of the size of `beside`."""
    return max(map(abs, deviations)) <= TOLERANCE * max(map(abs, beside)) + sys.float_info.min
