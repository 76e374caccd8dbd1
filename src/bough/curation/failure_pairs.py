"""Pairs from failure modes: a mistake against a better reply in the same state.

Sources of better replies are tried in the order of the settings: a success that went
through the same state; the environment's expert, after the episode was replayed up to
there; a sample of the model that led to success more often.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from bough.config.curation import FailureModesConfig
from bough.curation.branches import REPLAYS, at_round
from bough.curation.counterfactual import Miner
from bough.curation.lookup import EnvironmentOf, RulesOf
from bough.curation.round_pairs import StateTree, moved, round_pair
from bough.curation.rounds import Round
from bough.curation.source import SourcedTrajectory
from bough.curation.states import states
from bough.environments.base import Environment, EnvironmentFailedError
from bough.environments.mistakes import all_rules, chosen, mistakes
from bough.environments.replay import ReplayError
from bough.environments.rules import Rule, action_of
from bough.ledger import Ledger
from bough.types import Message, Pair, Turn

UNKNOWN = "no_better_reply_known"


@dataclass(frozen=True)
class Correction:
    """What should have been done, or why that is not known."""

    turn: Turn | None
    info: dict[str, JsonValue]
    problem: str = ""


async def failure_pairs(
    filed: Sequence[SourcedTrajectory],
    config: FailureModesConfig,
    ledger: Ledger,
    *,
    environment_of: EnvironmentOf,
    rules_of: RulesOf,
    miner: Callable[[type[Environment]], Awaitable[Miner]] | None = None,
) -> list[Pair]:
    """A pair for each mistake that a better reply is known for."""
    advisor = Advisor(config, StateTree(filed, rules_of), environment_of, rules_of, ledger)
    gate = asyncio.Semaphore(REPLAYS)

    async def ask(item: SourcedTrajectory) -> list[Pair | Round]:
        async with gate:
            return await advisor.look_at(item)

    found = [one for answers in await asyncio.gather(*map(ask, filed)) for one in answers]
    pairs = [one for one in found if isinstance(one, Pair)]
    rounds: dict[type[Environment], list[Round]] = {}
    for one in found:
        if isinstance(one, Round):
            environment_class = environment_of(one.item)
            assert environment_class is not None and miner is not None, "samples need an environment and a miner"
            rounds.setdefault(environment_class, []).append(one)
    for environment_class, of_environment in rounds.items():
        assert miner is not None
        pairs += await (await miner(environment_class)).pairs(of_environment, ledger, against="recorded")
    return pairs


@dataclass(frozen=True)
class Advisor:
    """Finds mistakes and better replies."""

    config: FailureModesConfig
    tree: StateTree
    environment_of: EnvironmentOf
    rules_of: RulesOf
    ledger: Ledger

    def rules(self, item: SourcedTrajectory) -> dict[str, Rule]:
        return chosen(all_rules(self.rules_of(item)), self.config.reasons)

    async def look_at(self, item: SourcedTrajectory) -> list[Pair | Round]:
        """A pair for each mistake of a trajectory, or a round to sample at where no better reply is known."""
        found: list[Pair | Round] = []
        count: Counter[str] = Counter()
        for mistake in mistakes(item.trajectory, self.rules(item)):
            if count[mistake.reason] == self.config.per_trajectory:
                self.ledger.drop("more_than_per_trajectory")
                continue
            # A success in the same state needs no environment.
            environment_class = self.environment_of(item) if set(self.config.better) - {"success"} else None
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
        """The first better reply in the order of the settings; else why there is none."""
        problem = UNKNOWN
        for source in self.config.better:
            advice = None
            if source == "success":
                advice = self._from_success(item, at)
            elif source == "expert" and environment_class is not None:
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
        rules = self.rules(item)

        def sound(turn: Turn) -> bool:
            turns = [*trajectory.turns[:at], turn]
            tried = instead.model_copy(update={"turns": turns})
            return not any(rule(tried, at) for rule in rules.values())

        way = self.tree.way_on(states(trajectory, self.rules_of(item))[at], action_of(trajectory.turns[at]), sound)
        if way is None:
            return None
        other, other_at = way
        turn = moved(other.trajectory.turns[other_at], other.trajectory, other_at, trajectory, at)
        return Correction(turn, {"by": "success", "chosen": {**other.place, "turn": other_at}})


async def _from_expert(item: SourcedTrajectory, at: int, environment_class: type[Environment]) -> Correction:
    """What the expert does after the replayed episode. It is carried out, to check that it is valid."""
    try:
        async with at_round(environment_class, item.trajectory, at) as environment:
            reply = await environment.expert()
            if reply is None:
                return Correction(None, {}, UNKNOWN)
            observation = await environment.step(reply)
    except ReplayError:
        return Correction(None, {}, "cannot_replay")
    except EnvironmentFailedError:
        return Correction(None, {}, "environment_failed")
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
    if action_of(turn) == action_of(item.trajectory.turns[at]):
        return Correction(None, {}, "expert_does_the_same")
    return Correction(turn, {"by": "expert"})
