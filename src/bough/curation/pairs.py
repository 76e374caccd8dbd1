"""Mines every requested kind of pairs, with a ledger per kind."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import floor, inf
from random import Random
from typing import Any

from pydantic import JsonValue

from bough.curation.rounds import (
    PARTING,
    EpisodePairsConfig,
    FailureModesConfig,
    PairsConfig,
    StateTree,
    moved,
    round_pair,
    round_pairs,
)
from bough.curation.source import SourcedTrajectory
from bough.curation.states import (
    REPLAYS,
    EnvironmentLookup,
    EnvironmentOf,
    RulesOf,
    actions,
    first_difference,
    shared_actions,
    states,
    task_key,
)
from bough.environments.base import Environment, EnvironmentFailedError, MistakeRules, Observation, Rule, action_of
from bough.environments.isolated import Isolated, shut_down
from bough.environments.mistakes import all_rules, chosen, mistakes
from bough.environments.replay import ReplayError, replay
from bough.environments.rewards import progress
from bough.environments.rubric import score
from bough.ledger import Ledger
from bough.types import Message, Pair, Trajectory, Turn, conversation

# Pairs of whole episodes: a success against a failure from the same initial state (EF-DPO).
# Turns at the start that both have in common are history: both sides give them the same log-probability, so they
# cancel and are not computed. The pair starts where the two differ, and both sides run to the end of their episode.

SUCCESS, PROGRESS = "success_over_failure", "more_progress"
# Two attempts at one task, the better one first, and the rule that says so.
Match = tuple[SourcedTrajectory, SourcedTrajectory, str]


def episode_pairs(
    filed: Sequence[SourcedTrajectory],
    config: EpisodePairsConfig,
    trajectories: Ledger,
    pairs: Ledger,
    *,
    reward: str | None = None,
) -> list[Pair]:
    """The pairs of every task. `trajectories` counts which are in a pair, `pairs` which candidates were left out."""
    found: list[Pair] = []
    for attempts in by_task(filed).values():
        used, seen, of_task = set[int](), set(), 0
        for better, worse, rule in _matches(attempts, config):
            ways = actions(better.trajectory.turns), actions(worse.trajectory.turns)
            if ways in seen:
                pairs.drop("duplicate")
            elif of_task == config.per_task:
                pairs.drop("more_than_per_task")
            elif (pair := _pair(better, worse, rule, reward)) is None:
                pairs.drop("never_part")
            else:
                pairs.keep()
                found.append(pair)
                of_task += 1
                seen.add(ways)
                used |= {id(better), id(worse)}
        outcomes = {item.trajectory.success for item in attempts}
        for item in attempts:
            success = item.trajectory.success
            if id(item) in used:
                trajectories.keep()
            elif success is None:
                trajectories.drop("outcome_unknown")
            elif (not success) not in outcomes:
                trajectories.drop("only_successes" if success else "only_failures")
            else:
                trajectories.drop("not_matched")
    return found


def by_task(filed: Sequence[SourcedTrajectory]) -> dict[str, list[SourcedTrajectory]]:
    """The attempts at each task, which can be compared with each other."""
    tasks: defaultdict[str, list[SourcedTrajectory]] = defaultdict(list)
    for item in filed:
        tasks[task_key(item.trajectory)].append(item)
    return tasks


def _matches(attempts: list[SourcedTrajectory], config: EpisodePairsConfig) -> Iterator[Match]:
    """Candidates, the most telling first."""
    successes = sorted((a for a in attempts if a.trajectory.success is True), key=_length)
    failures = [a for a in attempts if a.trajectory.success is False]
    if successes and failures:
        if config.match == "shortest_success":
            chosen = [(successes[0], failure) for failure in failures]
        elif config.match == "nearest_failure":
            chosen = [(success, max(failures, key=lambda f: _nearness(success, f))) for success in successes]
        else:
            chosen = list(product(successes, failures))
        # Attempts that share the most actions differ in the fewest, so their pair says most about each.
        chosen.sort(key=lambda match: _nearness(*match), reverse=True)
        yield from ((*match, SUCCESS) for match in chosen)
    if (margin := config.progress_margin) is not None:
        # Of two failures the one with more progress is better; the widest gaps first.
        known = [(value, f) for f in failures if (value := progress(f.trajectory)) is not None]
        gaps = [(high - low, a, b) for (high, a), (low, b) in product(known, known) if high - low >= margin - 1e-9]
        gaps.sort(key=lambda gap: (-round(gap[0], 9), _length(gap[1])))
        yield from ((better, worse, PROGRESS) for _, better, worse in gaps)


def _pair(better: SourcedTrajectory, worse: SourcedTrajectory, rule: str, reward: str | None) -> Pair | None:
    """The pair from the first difference on; None if one attempt is the beginning of the other."""
    good, bad = better.trajectory, worse.trajectory
    at = first_difference(good.turns, bad.turns)
    chosen, rejected = good.turns[at:], bad.turns[at:]
    if not chosen or not rejected or [turn.reply for turn in chosen] == [turn.reply for turn in rejected]:
        return None
    value = progress if rule == PROGRESS else partial(score, name=reward)
    values = value(good), value(bad)
    return Pair(
        task=good.task,
        start=conversation(good.start, good.turns[:at]),
        chosen=chosen,
        rejected=rejected,
        tools=good.tools,
        reason=rule,
        margin=None if values[0] is None or values[1] is None else values[0] - values[1],
        info={"rule": rule, "turn": at, "chosen": better.place, "rejected": worse.place},
    )


def _nearness(success: SourcedTrajectory, failure: SourcedTrajectory) -> tuple[int, float, int]:
    """Actions in common; then the failure's progress; then the shorter success."""
    shared = shared_actions(success.trajectory.turns, failure.trajectory.turns)
    return shared, progress(failure.trajectory) or 0.0, -_length(success)


def _length(filed: SourcedTrajectory) -> int:
    return len(filed.trajectory.turns)


# Pairs from failure modes: a mistake against a better reply in the same state.
# Sources of better replies are tried in the order of the settings: a success that went through the same state; the
# environment's expert, after the episode was replayed up to there.

UNKNOWN = "no_better_reply_known"
# A better turn and what is known about it, or why there is none.
Advice = tuple[Turn, dict[str, JsonValue]] | str


async def failure_pairs(
    filed: Sequence[SourcedTrajectory],
    config: FailureModesConfig,
    ledger: Ledger,
    *,
    environment_of: EnvironmentOf,
    rules_of: RulesOf,
) -> list[Pair]:
    """A pair for each mistake that a better reply is known for."""
    tree, gate = StateTree(filed, rules_of), asyncio.Semaphore(REPLAYS)

    async def look_at(item: SourcedTrajectory) -> list[Pair]:
        found, count = list[Pair](), Counter[str]()
        rules = chosen(all_rules(rules_of(item)), config.reasons)
        for mistake in mistakes(item.trajectory, rules):
            if count[mistake.reason] == config.per_trajectory:
                ledger.drop("more_than_per_trajectory")
                continue
            # A success in the same state needs no environment.
            environment_class = environment_of(item) if "expert" in config.better else None
            advice: Advice = UNKNOWN
            for source in config.better:
                if source == "success":
                    said = _from_success(tree, item, mistake.turn, rules, rules_of)
                else:
                    said = await _from_expert(item, mistake.turn, environment_class)
                if said != UNKNOWN:
                    advice = said
                if not isinstance(said, str):
                    break
            if isinstance(advice, str):
                ledger.drop(advice)
                continue
            ledger.keep()
            turn, info = advice
            found.append(round_pair(item, mistake.turn, turn, reason=mistake.reason, info=info))
            count[mistake.reason] += 1
        return found

    async def ask(item: SourcedTrajectory) -> list[Pair]:
        async with gate:
            return await look_at(item)

    return [pair for pairs in await asyncio.gather(*map(ask, filed)) for pair in pairs]


def _from_success(
    tree: StateTree, item: SourcedTrajectory, at: int, rules: Mapping[str, Rule], rules_of: RulesOf
) -> Advice:
    """What a success did in the same state, unless that would be a mistake here too."""
    trajectory = item.trajectory
    instead = trajectory.model_copy(update={"success": None, "stop": None})

    def sound(turn: Turn) -> bool:
        tried = instead.model_copy(update={"turns": [*trajectory.turns[:at], turn]})
        return not any(rule(tried, at) for rule in rules.values())

    way = tree.way_on(states(trajectory, rules_of(item))[at], action_of(trajectory.turns[at]), sound)
    if way is None:
        return UNKNOWN
    other, other_at = way
    turn = moved(other.trajectory.turns[other_at], other.trajectory, other_at, trajectory, at)
    return turn, {"by": "success", "chosen": {**other.place, "turn": other_at}}


async def _from_expert(item: SourcedTrajectory, at: int, environment_class: type[Environment] | None) -> Advice:
    """What the expert does after the replayed episode. It is carried out, to check that it is valid."""
    tried = UNKNOWN if environment_class is None else await _tried(item, at, environment_class)
    if isinstance(tried, str):
        return tried
    reply, observation = tried
    turn = Turn(
        reply=reply,
        action=observation.action,
        observation=list(observation.messages),
        reward=observation.reward,
        progress=observation.progress,
        error=observation.error,
    )
    if turn.error is not None:
        return UNKNOWN
    same = action_of(turn) == action_of(item.trajectory.turns[at])
    return "expert_does_the_same" if same else (turn, {"by": "expert"})


async def _tried(
    item: SourcedTrajectory, at: int, environment_class: type[Environment], reply: Message | None = None
) -> tuple[Message, Observation] | str:
    """A reply, by default the expert's, and what it leads to before turn `at`; or why it cannot be tried."""
    try:
        environment = await replay(lambda task: Isolated(environment_class, task), item.trajectory, at)
        try:
            if reply is None:
                if (text := await environment.expert()) is None:
                    return UNKNOWN
                reply = Message(role="assistant", content=text)
            return reply, await environment.step(reply)
        finally:
            await environment.close()
    except ReplayError:
        return "cannot_replay"
    except EnvironmentFailedError:
        return "environment_failed"


# Pairs that protect what is right: a step of a success against a mistake that it did not make there.
# Mistakes and their corrections only say what not to do. A policy trained on nothing else unlearns the right steps
# that look like wrong ones. So each success gives a few of its own steps, always including its last one, against a
# repetition of the step before, and one step against an early claim of success, if it ends with a claim. The episode
# is replayed up to that turn and the mistake is tried: if it makes progress, there is no pair.

RIGHT_STEP = "right_step"


async def right_steps(
    filed: Sequence[SourcedTrajectory],
    config: FailureModesConfig,
    ledger: Ledger,
    *,
    environment_of: EnvironmentOf,
    rules_of: RulesOf,
    seed: int,
) -> list[Pair]:
    """From each success at most `per_trajectory` steps against a repetition, and one against an early claim."""
    gate = asyncio.Semaphore(REPLAYS)

    async def look_at(item: SourcedTrajectory) -> list[Pair]:
        found, turns = list[Pair](), item.trajectory.turns
        async with gate:
            for at, reply, mistake in _tempting(item.trajectory, rules_of(item), config.per_trajectory, seed):
                environment_class, why_not = environment_of(item), "environment_unknown"
                if environment_class is not None:
                    tried = await _tried(item, at, environment_class, reply)
                    why_not = tried if isinstance(tried, str) else ""
                    if not isinstance(tried, str):
                        known, answer = turns[at - 1].progress if at else None, tried[1]
                        further = None not in (known, answer.progress) and (answer.progress or 0) > (known or 0)
                        why_not = "gets_further" if answer.success or further else ""
                if why_not:
                    ledger.drop(why_not)
                    continue
                ledger.keep()
                info: dict[str, JsonValue] = {"by": "environment", "mistake": mistake}
                found.append(round_pair(item, at, turns[at], Turn(reply=reply), reason=RIGHT_STEP, info=info))
        return found

    successes = [item for item in filed if item.trajectory.success]
    return [pair for pairs in await asyncio.gather(*map(look_at, successes)) for pair in pairs]


def _tempting(trajectory: Trajectory, rules: MistakeRules, count: int, seed: int) -> Iterator[tuple[int, Message, str]]:
    """Turns of a success, each with a wrong reply and the mistake it would be."""
    turns, rng = trajectory.turns, Random(f"{seed} {trajectory.id}")  # noqa: S311  no secret
    last = len(turns) - 1
    well_formed = [at for at, turn in enumerate(turns) if turn.error != "malformed"]
    sound = [at for at in well_formed if at == last or not rules.without_effect(turns[at])]
    again = [at for at in sound if at and action_of(turns[at]) != action_of(turns[at - 1])]
    # At most `count`, the last step of the episode before all others.
    drawn = sorted(rng.sample(again, len(again)), key=lambda at: at != last)[:count]
    for at in sorted(drawn):
        yield at, turns[at - 1].reply, "loop"
    early = [at for at in sound if at < last]
    if early and rules.claims_success(turns[last]):  # once, as often as the right claim stands against a repetition
        yield rng.choice(early), turns[last].reply, "premature_success"


# What a pair can be made for, besides the mistakes that rules find.
PAIR_REASONS = (SUCCESS, PROGRESS, PARTING, RIGHT_STEP)


class PairWork:
    """Mines the requested kinds of pairs; environments are opened when they are first needed."""

    def __init__(self, config: PairsConfig, filed: Sequence[SourcedTrajectory]) -> None:
        self.config, self.filed = config, filed
        self.ledgers: list[Ledger] = []
        self.lookup = EnvironmentLookup(
            config.environment, config.failure_modes.rules, config.failure_modes.rule_options
        )

    async def mine(self) -> list[Pair]:
        """The pairs of all kinds, within their caps and shares."""
        config, modes, lookup = self.config, self.config.failure_modes, self.lookup
        lookup.check_reasons(modes.reasons, self.filed, ())
        lookup.check_reasons([*modes.caps, *modes.shares], self.filed, PAIR_REASONS)
        # Without their branches: two replies in one round must answer the same messages.
        talks = [[turn for turn in item.trajectory.turns if turn.prompt is None] for item in self.filed]
        spoken = [
            replace(item, trajectory=item.trajectory.model_copy(update={"turns": turns}))
            for item, turns in zip(self.filed, talks, strict=True)
        ]
        found: list[Pair] = []
        try:
            if "episode" in config.kinds:
                ledgers = self._ledger("episodes"), self._ledger("candidates for episode pairs")
                found += episode_pairs(self.filed, config.episodes, *ledgers, reward=config.reward)
            if "parting" in config.kinds:
                ledger = self._ledger("failures, compared with successes")
                found += round_pairs(spoken, ledger, rules_of=lookup.rules_of)
            known: Any = {"environment_of": lookup.environment_of, "rules_of": lookup.rules_of}
            if "failure_mode" in config.kinds:
                lookup.learn(spoken)
                found += await failure_pairs(spoken, modes, self._ledger("mistakes"), **known)
            if "right_step" in config.kinds:
                ledger = self._ledger("steps of successes, against mistakes")
                found += await right_steps(spoken, modes, ledger, **known, seed=config.seed)
        finally:
            for environment_class in lookup.opened:
                await shut_down(environment_class)
        return balanced(found, modes.caps, modes.shares, self._ledger("pairs"), seed=config.seed)

    def _ledger(self, item: str) -> Ledger:
        self.ledgers.append(Ledger(item))
        return self.ledgers[-1]


# Limits on pairs per reason: a maximum number, and a maximum share of all pairs.


def balanced(
    pairs: Sequence[Pair],
    caps: Mapping[str, int],
    shares: Mapping[str, float],
    ledger: Ledger,
    *,
    seed: int,
) -> list[Pair]:
    """The pairs within caps and shares, sampled by `seed`, in their original order."""
    counts = Counter(str(pair.reason) for pair in pairs)
    capped = {reason: min(count, caps.get(reason, count)) for reason, count in counts.items()}
    allowed = _within(capped, shares)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, pair in enumerate(pairs):
        places[str(pair.reason)].append(place)
    kept: set[int] = set()
    for reason, of_reason in places.items():
        Random(f"{seed} {reason}").shuffle(of_reason)  # noqa: S311  no secret
        kept |= set(of_reason[: allowed[reason]])
        if cut := counts[reason] - capped[reason]:
            ledger.drop(f"{reason}_over_its_cap", cut)
        if cut := capped[reason] - allowed[reason]:
            ledger.drop(f"{reason}_over_its_share", cut)
    ledger.keep(len(kept))
    return [pair for place, pair in enumerate(pairs) if place in kept]


def _within(counts: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """The largest counts such that no reason has more than its share of the remaining pairs.

    Each cut reduces the total and with it the other limits, so it is repeated until nothing
    changes. Counts stay fractions until the end, so that rounding errors do not add up. Every
    reason keeps at least one pair.
    """
    if counts and all(reason in shares for reason in counts):
        # If every reason has a share and they add up to less than 1, they are relative.
        whole = min(1.0, sum(shares[reason] for reason in counts))
        shares = {reason: shares[reason] / whole for reason in counts}
    total, before = float(sum(counts.values())), inf
    allowed: dict[str, float] = dict(counts)
    while before - total > 1e-9:
        allowed = {reason: min(count, shares.get(reason, 1.0) * total) for reason, count in counts.items()}
        before, total = total, sum(allowed.values())
    return {reason: min(counts[reason], max(1, floor(most + 1e-6))) for reason, most in allowed.items()}
