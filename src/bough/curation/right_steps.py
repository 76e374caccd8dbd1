"""Pairs that hold in place what is right: a step of a success against a mistake that it did not make there.

Mistakes and their corrections say what not to do. A policy that hears nothing else
unlearns the right steps that look like the wrong ones: takes, because some were of
things that were not there. So each success gives a few of its own steps, its last one
always, against the step before done once more, and against the claim to be done where
it made one later. The world is brought to that round and asked: what gets further
there is no mistake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random

from bough.config.curation import FailureModesConfig, Reason
from bough.curation.branches import REPLAYS, Kinds, at_round
from bough.curation.failure_modes import claims
from bough.curation.round_pairs import round_pair
from bough.curation.source import SourcedTrajectory
from bough.curation.states import did, without_effect
from bough.environments.base import Environment, WorldError
from bough.environments.replay import ReplayError
from bough.ledger import Ledger
from bough.types import Message, Pair, Trajectory, Turn

REASON = "right_step"


async def right_steps(
    filed: Sequence[SourcedTrajectory],
    config: FailureModesConfig,
    ledger: Ledger,
    *,
    kinds: Kinds,
    seed: int,
) -> list[Pair]:
    """From each success `per_trajectory` steps at most against a repetition, and one against an early claim."""
    gate = asyncio.Semaphore(REPLAYS)

    async def look_at(item: SourcedTrajectory) -> list[Pair]:
        async with gate:
            found = []
            for at, reply, mistake in _tempting(item.trajectory, config.per_trajectory, seed):
                why_not = await _no_mistake(item, at, reply, kinds(item))
                if why_not:
                    ledger.drop(why_not)
                    continue
                ledger.keep()
                step, worse = item.trajectory.turns[at], Turn(reply=reply)
                found.append(round_pair(item, at, step, worse, reason=REASON, info={"by": "world", "mistake": mistake}))
            return found

    successes = [item for item in filed if item.trajectory.success]
    return [pair for pairs in await asyncio.gather(*map(look_at, successes)) for pair in pairs]


def _tempting(trajectory: Trajectory, count: int, seed: int) -> Iterator[tuple[int, Message, Reason]]:
    """Rounds of a success with what could be said wrong there."""
    turns, rng = trajectory.turns, Random(f"{seed} {trajectory.id}")  # noqa: S311  no secret
    last = len(turns) - 1
    sound = [at for at, turn in enumerate(turns) if at == last or not without_effect(turn)]
    again = [at for at in sound if at and did(turns[at]) != did(turns[at - 1])]
    for at in _drawn(again, last, count, rng):
        yield at, turns[at - 1].reply, "loop"
    early = [at for at in sound if at < last]
    if early and claims(turns[last]):  # once, as often as the right claim is held against a repetition
        yield rng.choice(early), turns[last].reply, "premature_success"


def _drawn(rounds: list[int], last: int, count: int, rng: Random) -> list[int]:
    """So many of the rounds, the last step of the episode first of all."""
    order = sorted(rng.sample(rounds, len(rounds)), key=lambda at: at != last)
    return sorted(order[:count])


async def _no_mistake(
    item: SourcedTrajectory, at: int, reply: Message, environment_class: type[Environment] | None
) -> str:
    """Why the reply is not known to be a mistake in that round; nothing where it is."""
    if environment_class is None:
        return "world_unknown"
    try:
        async with at_round(environment_class, item.trajectory, at) as environment:
            answer = await environment.step(reply)
    except ReplayError:
        return "cannot_replay"
    except WorldError:
        return "world_broke"
    before = item.trajectory.turns[at - 1].progress if at else None
    further = answer.progress is not None and before is not None and answer.progress > before
    return "gets_further" if answer.success or further else ""
