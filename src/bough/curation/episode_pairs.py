"""Pairs of whole episodes: a success against a failure from the same initial state (EF-DPO).

Turns at the start that both have in common are history: both sides give them the same
log-probability, so they cancel and are not computed. The pair starts where the two
differ, and both sides run to the end of their episode.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from pydantic import JsonValue

from bough.config.curation import EpisodePairsConfig
from bough.curation.source import SourcedTrajectory
from bough.curation.states import actions, first_difference, shared_actions, task_key
from bough.ledger import Ledger
from bough.rewards.builtin import progress
from bough.rewards.score import score
from bough.types import Pair, Trajectory, conversation

SUCCESS, PROGRESS = "success_over_failure", "more_progress"


@dataclass(frozen=True)
class Match:
    """Two attempts at one task, the better one first."""

    better: SourcedTrajectory
    worse: SourcedTrajectory
    rule: str


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
        used: Counter[int] = Counter()
        of_task = 0
        seen = set()
        for match in _matches(attempts, config):
            ways = actions(match.better.trajectory.turns), actions(match.worse.trajectory.turns)
            pair = None
            if ways in seen:
                pairs.drop("duplicate")
            elif of_task == config.per_task:
                pairs.drop("more_than_per_task")
            elif (pair := _pair(match, reward)) is None:
                pairs.drop("never_part")
            if pair is not None:
                pairs.keep()
                found.append(pair)
                of_task += 1
                seen.add(ways)
                used.update((id(match.better), id(match.worse)))
        _account(attempts, used, trajectories)
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
        yield from (Match(*match, SUCCESS) for match in chosen)
    if config.progress_margin is not None:
        yield from _by_progress(failures, config.progress_margin)


def _by_progress(failures: list[SourcedTrajectory], margin: float) -> Iterator[Match]:
    """Of two failures the one with more progress, by at least `margin`, is better; the widest gaps first."""
    known = [(value, f) for f in failures if (value := progress(f.trajectory)) is not None]
    gaps = [(high - low, a, b) for (high, a), (low, b) in product(known, known) if high - low >= margin - 1e-9]
    gaps.sort(key=lambda gap: (-round(gap[0], 9), _length(gap[1])))
    yield from (Match(better, worse, PROGRESS) for _, better, worse in gaps)


def _pair(match: Match, reward: str | None) -> Pair | None:
    """The pair from the first difference on; None if one attempt is the beginning of the other."""
    better, worse = match.better.trajectory, match.worse.trajectory
    at = first_difference(better.turns, worse.turns)
    chosen, rejected = better.turns[at:], worse.turns[at:]
    if not chosen or not rejected or [turn.reply for turn in chosen] == [turn.reply for turn in rejected]:
        return None
    info: dict[str, JsonValue] = {
        "rule": match.rule,
        "turn": at,
        "chosen": match.better.place,
        "rejected": match.worse.place,
    }
    return Pair(
        task=better.task,
        start=conversation(better.start, better.turns[:at]),
        chosen=chosen,
        rejected=rejected,
        tools=better.tools,
        reason=match.rule,
        margin=_margin(better, worse, match.rule, reward),
        info=info,
    )


def _margin(better: Trajectory, worse: Trajectory, rule: str, reward: str | None) -> float | None:
    values = (progress(better), progress(worse)) if rule == PROGRESS else (score(better, reward), score(worse, reward))
    return None if values[0] is None or values[1] is None else values[0] - values[1]


def _nearness(success: SourcedTrajectory, failure: SourcedTrajectory) -> tuple[int, float, int]:
    """Actions in common; then the failure's progress; then the shorter success."""
    shared = shared_actions(success.trajectory.turns, failure.trajectory.turns)
    return shared, progress(failure.trajectory) or 0.0, -_length(success)


def _length(filed: SourcedTrajectory) -> int:
    return len(filed.trajectory.turns)


def _account(attempts: list[SourcedTrajectory], used: Counter[int], ledger: Ledger) -> None:
    outcomes = {item.trajectory.success for item in attempts}
    for item in attempts:
        if used[id(item)]:
            ledger.keep()
        elif item.trajectory.success is None:
            ledger.drop("outcome_unknown")
        elif (not item.trajectory.success) not in outcomes:
            ledger.drop("only_successes" if item.trajectory.success else "only_failures")
        else:
            ledger.drop("not_matched")
