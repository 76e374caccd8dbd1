"""Pairs from failure modes: the mistake against what somebody who knows better does in that very state.

Who knows better is asked in the order of the settings: a success that went through the
same state; the world's expert, after the episode was replayed up to there; a sample of
the model that was played on and did better with the certainty asked for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from bough.config.curation import FailureModesConfig, Reason
from bough.curation.branches import REPLAYS, Kinds, at_round
from bough.curation.counterfactual import Miner
from bough.curation.failure_modes import Rule, mistakes, rules
from bough.curation.locations import Locations
from bough.curation.round_pairs import StateTree, moved, round_pair
from bough.curation.rounds import Round
from bough.curation.source import SourcedTrajectory
from bough.curation.states import did, states
from bough.environments.base import Environment, WorldError
from bough.environments.replay import ReplayError
from bough.ledger import Ledger
from bough.types import Message, Pair, Turn

UNKNOWN = "nobody_knows_better"


@dataclass(frozen=True)
class Correction:
    """What should have been done, or why nobody says so."""

    turn: Turn | None
    info: dict[str, JsonValue]
    problem: str = ""


async def failure_pairs(
    filed: Sequence[SourcedTrajectory],
    config: FailureModesConfig,
    ledger: Ledger,
    *,
    kinds: Kinds,
    miner: Callable[[type[Environment]], Awaitable[Miner]] | None = None,
) -> list[Pair]:
    """A pair for each mistake that somebody knows better than. `kinds` gives a trajectory's world, if it is known."""
    advisor = Advisor(config, StateTree(filed), rules(config.reasons, _locations(filed, config)), kinds, ledger)
    gate = asyncio.Semaphore(REPLAYS)

    async def ask(item: SourcedTrajectory) -> list[Pair | Round]:
        async with gate:
            return await advisor.look_at(item)

    found = [one for answers in await asyncio.gather(*map(ask, filed)) for one in answers]
    pairs = [one for one in found if isinstance(one, Pair)]
    rounds: dict[type[Environment], list[Round]] = {}
    for one in found:
        if isinstance(one, Round):
            environment_class = kinds(one.item)
            assert environment_class is not None and miner is not None, "samples need a world and a miner"
            rounds.setdefault(environment_class, []).append(one)
    for environment_class, of_kind in rounds.items():
        assert miner is not None
        pairs += await (await miner(environment_class)).pairs(of_kind, ledger, against="recorded")
    return pairs


def _locations(filed: Sequence[SourcedTrajectory], config: FailureModesConfig) -> Locations:
    if "implausible_location" not in config.reasons:
        return Locations({})
    if config.locations is not None:
        return Locations.read(config.locations)
    return Locations.learn((item.trajectory for item in filed), config.rare)


@dataclass(frozen=True)
class Advisor:
    """Finds mistakes and asks who knows better."""

    config: FailureModesConfig
    tree: StateTree
    rules: dict[Reason, Rule]
    kinds: Kinds
    ledger: Ledger

    async def look_at(self, item: SourcedTrajectory) -> list[Pair | Round]:
        """A pair for each mistake of a trajectory, or a round to look into where nobody could say."""
        found: list[Pair | Round] = []
        count: Counter[str] = Counter()
        for mistake in mistakes(item.trajectory, self.rules):
            if count[mistake.reason] == self.config.per_trajectory:
                self.ledger.drop("more_than_per_trajectory")
                continue
            # A success in the same state needs no world.
            environment_class = self.kinds(item) if set(self.config.better) - {"success"} else None
            advice = await self._advice(item, mistake.turn, environment_class)
            if advice.turn is not None:
                self.ledger.keep()
                found.append(round_pair(item, mistake.turn, advice.turn, reason=mistake.reason, info=advice.info))
            elif advice.problem == UNKNOWN and environment_class is not None and "sample" in self.config.better:
                found.append(Round(item, mistake.turn, mistake.reason))
            else:
                self.ledger.drop(advice.problem)
                continue
            count[mistake.reason] += 1
        return found

    async def _advice(
        self, item: SourcedTrajectory, at: int, environment_class: type[Environment] | None
    ) -> Correction:
        """The first answer of those who are asked; else the best reason why there is none."""
        problem = UNKNOWN
        for who in self.config.better:
            advice = None
            if who == "success":
                advice = self._from_success(item, at)
            elif who == "expert" and environment_class is not None:
                advice = await _from_expert(item, at, environment_class)
            if advice is not None and advice.turn is not None:
                return advice
            if advice is not None and advice.problem != UNKNOWN:
                problem = advice.problem
        return Correction(None, {}, problem)

    def _from_success(self, item: SourcedTrajectory, at: int) -> Correction | None:
        """What a success did in the same state, unless that would be a mistake here too."""
        trajectory = item.trajectory
        instead = trajectory.model_copy(update={"success": None, "stop": None})

        def sound(turn: Turn) -> bool:
            turns = [*trajectory.turns[:at], turn]
            tried = instead.model_copy(update={"turns": turns})
            return not any(rule(tried, at) for rule in self.rules.values())

        way = self.tree.way_on(states(trajectory)[at], did(trajectory.turns[at]), sound)
        if way is None:
            return None
        other, other_at = way
        turn = moved(other.trajectory.turns[other_at], other.trajectory, other_at, trajectory, at)
        return Correction(turn, {"by": "success", "chosen": {**other.place, "turn": other_at}})


async def _from_expert(item: SourcedTrajectory, at: int, environment_class: type[Environment]) -> Correction:
    """What the expert does after the replayed episode; it is done, to see that the world takes it."""
    try:
        async with at_round(environment_class, item.trajectory, at) as environment:
            reply = await environment.expert()
            if reply is None:
                return Correction(None, {}, UNKNOWN)
            observation = await environment.step(reply)
    except ReplayError:
        return Correction(None, {}, "cannot_replay")
    except WorldError:
        return Correction(None, {}, "world_broke")
    turn = Turn(
        reply=Message(role="assistant", content=reply),
        action=observation.action,
        observation=list(observation.messages),
        reward=observation.reward,
        progress=observation.progress,
        error=observation.error,
    )
    if turn.error is not None:
        return Correction(None, {}, UNKNOWN)
    if did(turn) == did(item.trajectory.turns[at]):
        return Correction(None, {}, "expert_does_the_same")
    return Correction(turn, {"by": "expert"})
