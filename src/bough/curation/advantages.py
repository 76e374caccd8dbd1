"""How much better than its group an attempt, a step or a turn was.

Three levels, all plain numbers: one advantage per attempt (`group_advantages`), that
advantage spread over the attempt's steps by their rewards (`step_advantages`), or one
advantage per turn from the turns' own rewards (`turn_advantages`). `call_advantages`
takes a whole group at the level that is asked for; `state_call_advantages` compares steps by the
state they start in.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from statistics import mean, stdev
from typing import Generic, Literal, NamedTuple, TypeVar

from bough.environments.rubric import score
from bough.errors import RowError
from bough.files import json_digest
from bough.types import Group, Trajectory

Level = Literal["attempt", "step", "turn"]
Dropped = Literal["too_few_scored", "zero_variance"]
StepFormula = Literal["bounded", "seed"]
Value = TypeVar("Value")

# Rewards that differ by less than this share of their size are rounding, not signal: dividing
# by their standard deviation would blow 0.1 + 0.2 against 0.3 up to a full-sized advantage.
TOLERANCE = 1e-6


class Advantages(NamedTuple, Generic[Value]):
    """One value per attempt, in the group's order. `dropped` says why the group gives no training signal, if so."""

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
    `state_call_advantages` groups by equal states instead of equal turn numbers.

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


# Credit by state: steps that start in the same state of the environment are compared with each other.
# With α the weight of the attempt, a step's advantage is
#     A = α · A_attempt + A_state,    A_state = (q − mean q) / std q
# where mean and std run over all steps of the group's attempts from that state, and q is
#     "state"   the discounted return from the step on (GiGPO, 2505.10978)     "graph"   r + discount · V(next state),
# with V over the graph of all observed steps               (after GraphGPO, 2605.26684, and G2PO)
# A state that only one attempt reaches says nothing about its steps: A_state is 0 there, and where no state is shared
# all of this is α times the plain advantage of the attempt.

StateLevel = Literal["state", "graph"]


class Step(NamedTuple):
    """A step of an attempt: the state it starts in, its reward, the state it leads to (None: the attempt ends)."""

    state: str
    reward: float
    after: str | None


# The steps of one attempt; None if it was not scored.
Steps = list[Step] | None


def state_call_advantages(
    group: Group,
    *,
    level: StateLevel,
    reward: str | None = None,
    normalise: bool = True,
    discount: float = 0.95,
    attempt_weight: float = 1.0,
) -> list[list[float | None]]:
    """An advantage for every turn of every attempt; None where it was not scored.

    RowError where there is nothing to compare: all attempts alike, and all steps from each state.
    """
    rewards = [score(attempt, reward) for attempt in group.attempts]
    whole = group_advantages(rewards, normalise=normalise)
    if whole.dropped == "too_few_scored":
        raise RowError(whole.dropped, "fewer than two attempts are scored")
    attempts = [attempt_steps(*both) for both in zip(group.attempts, rewards, strict=True)]
    targets = returns(attempts, discount) if level == "state" else lookahead(attempts, discount)
    compared = compare_by_state(attempts, targets, normalise=normalise)
    found: list[list[float | None]] = []
    for attempt, of_attempt, of_steps in zip(group.attempts, whole.values, compared, strict=True):
        if of_attempt is None or of_steps is None:
            found.append([None] * len(attempt.turns))
            continue
        steps = iter(of_steps)
        own = [next(steps) if turn.prompt is None else 0.0 for turn in attempt.turns]
        found.append([attempt_weight * of_attempt + value for value in own])
    if not any(chain.from_iterable(found)):
        raise RowError("zero_variance", "neither the attempts' rewards nor the steps from any state differ")
    return found


def attempt_steps(attempt: Trajectory, outcome: float | None) -> Steps:
    """The steps of an attempt; None if it was not scored. Turns with a prompt of their own are not steps.

    A state is the environment's name for it, or else a digest of the observation.
    """
    if outcome is None:
        return None
    steps, seen = list[Step](), attempt.start
    # What a turn outside the conversation was rewarded with belongs to the step that follows it.
    pending = 0.0
    for turn, value in zip(attempt.turns, turn_rewards(attempt, outcome), strict=True):
        pending += value or 0.0
        if turn.prompt is None:
            # Ids of tool calls are random and say nothing about the environment.
            shown = [(message.role, message.content, message.hint) for message in seen]
            state = f"observation {json_digest(shown, size=16)}" if turn.state is None else f"state {turn.state}"
            if steps:
                steps[-1] = steps[-1]._replace(after=state)
            steps.append(Step(state, pending, None))
            pending, seen = 0.0, turn.observation
    if steps and pending:
        steps[-1] = steps[-1]._replace(reward=steps[-1].reward + pending)
    return steps


def returns(attempts: Sequence[Steps], discount: float) -> list[list[float] | None]:
    """The discounted return from each step on."""
    return [None if steps is None else returns_to_go([s.reward for s in steps], discount) or [] for steps in attempts]


def lookahead(attempts: Sequence[Steps], discount: float) -> list[list[float] | None]:
    """For each step its reward and the discounted value of the state it leads to, over the graph of all attempts."""
    values = graph_values([steps for steps in attempts if steps is not None], discount)
    return [
        None
        if steps is None
        else [step.reward + discount * (0.0 if step.after is None else values[step.after]) for step in steps]
        for steps in attempts
    ]


def graph_values(attempts: Sequence[Sequence[Step]], discount: float) -> dict[str, float]:
    """The value of every state over the graph of observed steps. Where an attempt ends, nothing follows.

        V(s) = mean over the steps from s of r + discount · V(s')

    With a reward of 1 for success, it is the probability of success for who chooses among the
    observed steps as the attempts did, discounted by the number of steps; it estimates the value
    of the policy (certainty equivalence). Every state was left by a step and every attempt ended, so the
    equations have one solution.
    """
    import numpy as np

    outgoing: dict[str, list[Step]] = defaultdict(list)
    for step in chain.from_iterable(attempts):
        outgoing[step.state].append(step)
    index = {state: number for number, state in enumerate(outgoing)}
    left, right = np.eye(len(index)), np.zeros(len(index))
    for state, steps in outgoing.items():
        for step in steps:
            right[index[state]] += step.reward / len(steps)
            if step.after is not None:
                left[index[state], index[step.after]] -= discount / len(steps)
    return dict(zip(index, np.linalg.solve(left, right).tolist(), strict=True))


def compare_by_state(
    attempts: Sequence[Steps], targets: Sequence[list[float] | None], *, normalise: bool = True
) -> list[list[float] | None]:
    """(q − mean) / std over the steps from each state; 0 where fewer than two attempts share it or nothing differs."""
    visits: dict[str, list[float]] = defaultdict(list)
    visitors: dict[str, set[int]] = defaultdict(set)
    for number, (steps, values) in enumerate(zip(attempts, targets, strict=True)):
        for step, value in zip(steps or [], values or [], strict=True):
            visits[step.state].append(value)
            visitors[step.state].add(number)
    baseline: dict[str, tuple[float, float]] = {}
    for state, values in visits.items():
        centre = mean(values)
        if len(visitors[state]) > 1 and not negligible((value - centre for value in values), beside=values):
            baseline[state] = centre, stdev(values) if normalise else 1.0
    found: list[list[float] | None] = []
    for steps, of_steps in zip(attempts, targets, strict=True):
        standing = []
        for step, value in zip(steps or [], of_steps or [], strict=True):
            centre, scale = baseline.get(step.state, (value, 1.0))
            standing.append((value - centre) / scale)
        found.append(None if steps is None else standing)
    return found
