"""Credit by state: steps that start in the same state of the environment are compared with each other.

With α and ω the weights, a step's advantage is

    A = α · A_attempt + ω · A_state,    A_state = (q − mean q) / std q

where mean and std run over all steps of the group's attempts from that state, and q is

    "state"   the discounted return from the step on (GiGPO, 2505.10978)
    "graph"   r + discount · V(next state), with V over the graph of all observed steps
              (after GraphGPO, 2605.26684, and G2PO)

A state that only one attempt reaches says nothing about its steps: A_state is 0 there, and where
no state is shared all of this is α times the plain advantage of the attempt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import mean, stdev
from typing import Literal, NamedTuple

from bough.digest import json_digest
from bough.errors import RowError
from bough.methods.advantages import group_advantages, negligible, returns_to_go, turn_rewards
from bough.rewards.score import score
from bough.types import Group, Message, Trajectory

StateLevel = Literal["state", "graph"]
GraphValue = Literal["mean", "best"]
# Values over the graph are exact to this share of the largest.
PRECISION = 1e-12


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
    graph_value: GraphValue = "mean",
    attempt_weight: float = 1.0,
    state_weight: float = 1.0,
) -> list[list[float | None]]:
    """An advantage for every turn of every attempt; None where it was not scored.

    RowError where there is nothing to compare: all attempts alike, and all steps from each state.
    """
    rewards = [score(attempt, reward) for attempt in group.attempts]
    whole = group_advantages(rewards, normalise=normalise)
    if whole.dropped == "too_few_scored":
        raise RowError(whole.dropped, "fewer than two attempts are scored")
    attempts = [attempt_steps(*both) for both in zip(group.attempts, rewards, strict=True)]
    targets = returns(attempts, discount) if level == "state" else lookahead(attempts, discount, graph_value)
    compared = compare_by_state(attempts, targets, normalise=normalise)
    found: list[list[float | None]] = []
    for attempt, of_attempt, of_steps in zip(group.attempts, whole.values, compared, strict=True):
        if of_attempt is None or of_steps is None:
            found.append([None] * len(attempt.turns))
            continue
        steps = iter(of_steps)
        replayed = _num_replayed(attempt)
        own = [next(steps) if turn.prompt is None else 0.0 for turn in attempt.turns[replayed:]]
        own = [0.0] * replayed + own
        found.append([attempt_weight * of_attempt + state_weight * value for value in own])
    if not any(chain.from_iterable(found)):
        raise RowError("zero_variance", "neither the attempts' rewards nor the steps from any state differ")
    return found


def attempt_steps(attempt: Trajectory, outcome: float | None) -> Steps:
    """The steps of an attempt; None if it was not scored. Turns with a prompt of their own are not steps.

    Nor are turns that were replayed to start in the middle of an episode: the policy did not choose them, and
    every attempt has them, so that they would outweigh its own steps in a state that it comes back to.
    """
    rewards = turn_rewards(attempt, outcome)
    if outcome is None:
        return None
    states = list(_states(attempt))
    # What a turn outside the conversation was rewarded with belongs to the step that follows it.
    steps: list[Step] = []
    pending = 0.0
    for turn, value in zip(attempt.turns, rewards, strict=True):
        pending += value or 0.0
        if turn.prompt is None:
            following = states[len(steps) + 1] if len(steps) + 1 < len(states) else None
            steps.append(Step(states[len(steps)], pending, following))
            pending = 0.0
    if steps and pending:
        steps[-1] = steps[-1]._replace(reward=steps[-1].reward + pending)
    return steps[sum(turn.prompt is None for turn in attempt.turns[: _num_replayed(attempt)]) :]


def _num_replayed(attempt: Trajectory) -> int:
    count = attempt.info.get("replayed_turns")
    return min(max(count, 0), len(attempt.turns)) if isinstance(count, int) else 0


def _states(attempt: Trajectory) -> Iterator[str]:
    """The state before each step: the environment's name for it, or else a digest of the observation."""
    seen: Sequence[Message] = attempt.start
    for turn in attempt.turns:
        if turn.prompt is None:
            # Ids of tool calls are random and say nothing about the environment.
            shown = [(message.role, message.content, message.hint) for message in seen]
            yield f"observation {json_digest(shown, size=16)}" if turn.state is None else f"state {turn.state}"
            seen = turn.observation


def returns(attempts: Sequence[Steps], discount: float) -> list[list[float] | None]:
    """The discounted return from each step on."""
    return [None if steps is None else returns_to_go([s.reward for s in steps], discount) or [] for steps in attempts]


def lookahead(attempts: Sequence[Steps], discount: float, graph_value: GraphValue) -> list[list[float] | None]:
    """For each step its reward and the discounted value of the state it leads to, over the graph of all attempts."""
    values = graph_values([steps for steps in attempts if steps is not None], discount, graph_value)
    return [
        None if steps is None else [step.reward + discount * _value(values, step.after) for step in steps]
        for steps in attempts
    ]


def graph_values(
    attempts: Sequence[Sequence[Step]], discount: float, graph_value: GraphValue = "mean"
) -> dict[str, float]:
    """The value of every state over the graph of observed steps. Where an attempt ends, nothing follows.

        mean    V(s) = mean over the steps from s of r + discount · V(s')
        best    V(s) = the largest of them

    With a reward of 1 for success, "mean" is the probability of success for who chooses among the
    observed steps as the attempts did, discounted by the number of steps; it estimates the value
    of the policy (certainty equivalence). "best" is discount^(d − 1), where d is the smallest
    number of observed steps to a success: the distance of GraphGPO.
    """
    outgoing: dict[str, list[Step]] = defaultdict(list)
    for step in chain.from_iterable(attempts):
        outgoing[step.state].append(step)
    return _best_values(outgoing, discount) if graph_value == "best" else _mean_values(outgoing, discount)


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
    return [
        None if steps is None else [_standing(baseline, *one) for one in zip(steps, values or [], strict=True)]
        for steps, values in zip(attempts, targets, strict=True)
    ]


def _standing(baseline: dict[str, tuple[float, float]], step: Step, value: float) -> float:
    if step.state not in baseline:
        return 0.0
    centre, scale = baseline[step.state]
    return (value - centre) / scale


def _value(values: dict[str, float], state: str | None) -> float:
    return 0.0 if state is None else values[state]


def _mean_values(outgoing: dict[str, list[Step]], discount: float) -> dict[str, float]:
    """Solves V = r + discount · P V; every state was left by a step and every attempt ended, so it has one solution."""
    import numpy as np

    index = {state: number for number, state in enumerate(outgoing)}
    left, right = np.eye(len(index)), np.zeros(len(index))
    for state, steps in outgoing.items():
        for step in steps:
            right[index[state]] += step.reward / len(steps)
            if step.after is not None:
                left[index[state], index[step.after]] -= discount / len(steps)
    return dict(zip(index, np.linalg.solve(left, right).tolist(), strict=True))


def _best_values(outgoing: dict[str, list[Step]], discount: float) -> dict[str, float]:
    """Value iteration: as many rounds as the longest way has steps; loops with a reward need a discount below 1."""
    values = dict.fromkeys(outgoing, 0.0)
    while True:
        better = {
            state: max(step.reward + discount * _value(values, step.after) for step in steps)
            for state, steps in outgoing.items()
        }
        change = max((abs(better[state] - values[state]) for state in values), default=0.0)
        values = better
        if change <= PRECISION * max(map(abs, values.values()), default=0.0):
            return values
