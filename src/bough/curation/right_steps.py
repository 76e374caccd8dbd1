"""Pairs that protect what is right: a step of a success against a mistake that it did not make there.

Mistakes and their corrections only say what not to do. A policy trained on nothing else
unlearns the right steps that look like wrong ones. So each success gives a few of its
own steps, always including its last one, against a repetition of the step before, and
one step against an early claim of success, if it ends with a claim. The episode is
replayed up to that turn and the mistake is tried: if it makes progress, there is no pair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random

from pydantic import JsonValue

from bough.config.curation import FailureModesConfig
from bough.curation.branches import REPLAYS, at_round
from bough.curation.lookup import EnvironmentOf, RulesOf
from bough.curation.round_pairs import round_pair
from bough.curation.source import SourcedTrajectory
from bough.environments.base import Environment, EnvironmentFailedError
from bough.environments.replay import ReplayError
from bough.environments.rules import MistakeRules, action_of
from bough.ledger import Ledger
from bough.types import Message, Pair, Trajectory, Turn

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
        async with gate:
            found = []
            for at, reply, mistake in _tempting(item.trajectory, rules_of(item), config.per_trajectory, seed):
                why_not = await _no_mistake(item, at, reply, environment_of(item))
                if why_not:
                    ledger.drop(why_not)
                    continue
                ledger.keep()
                step, worse = item.trajectory.turns[at], Turn(reply=reply)
                info: dict[str, JsonValue] = {"by": "environment", "mistake": mistake}
                found.append(round_pair(item, at, step, worse, reason=RIGHT_STEP, info=info))
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
    for at in _drawn(again, last, count, rng):
        yield at, turns[at - 1].reply, "loop"
    early = [at for at in sound if at < last]
    if early and rules.claims_success(turns[last]):  # once, as often as the right claim stands against a repetition
        yield rng.choice(early), turns[last].reply, "premature_success"


def _drawn(rounds: list[int], last: int, count: int, rng: Random) -> list[int]:
    """At most `count` of the rounds, the last step of the episode before all others."""
    order = sorted(rng.sample(rounds, len(rounds)), key=lambda at: at != last)
    return sorted(order[:count])


async def _no_mistake(
    item: SourcedTrajectory, at: int, reply: Message, environment_class: type[Environment] | None
) -> str:
    """Why the reply is not known to be a mistake at that turn; empty where it is one."""
    if environment_class is None:
        return "environment_unknown"
    try:
        async with at_round(environment_class, item.trajectory, at) as environment:
            answer = await environment.step(reply)
    except ReplayError:
        return "cannot_replay"
    except EnvironmentFailedError:
        return "environment_failed"
    before = item.trajectory.turns[at - 1].progress if at else None
    further = answer.progress is not None and before is not None and answer.progress > before
    return "gets_further" if answer.success or further else ""
