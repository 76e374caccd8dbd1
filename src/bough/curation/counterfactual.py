"""Counterfactual pairs: at one turn of a trajectory, other replies are sampled and each is played to the end.

A reply is better if it leads to success more often. A few plays of each reply find the
best and the worst. These two are then played again, and only the second plays count:
what stands out among several may be luck. s successes in n plays give a Beta posterior
of the success rate, and a pair is made only where the better reply is better with the
required certainty. The recorded outcome does not count either, since trajectories are
selected by how they ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, TypeVar

from pydantic import JsonValue

from bough.config.groups import LimitsConfig
from bough.curation.rounds import CounterfactualConfig, Journal, Rate, Result, Round, probability_better, round_pair
from bough.curation.states import Branch, BranchAgent, at_round
from bough.engines.base import Answer, ContextFullError, EngineError
from bough.environments.base import Environment, EnvironmentFailedError, action_of
from bough.environments.replay import ReplayError
from bough.files import derived_seed
from bough.ledger import Ledger
from bough.rollouts.agents import NO_EXPERT, Agent, NoAdviceError
from bough.rollouts.collect import collect
from bough.rollouts.runner import Attempt, LocalRunner
from bough.types import Pair, Trajectory, Turn, conversation

T = TypeVar("T")


@dataclass
class Cost:
    """What mining has cost so far."""

    rounds: int = 0
    episodes: int = 0
    sampled_turns: int = 0
    lost_episodes: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def become(self, spent: dict[str, int]) -> None:
        """Takes over the cost recorded in a journal."""
        for name, count in spent.items():
            setattr(self, name, count)


@dataclass
class Option:
    """A reply that was tried: its success rate while scouting, its success rate as evidence, and its turn as played."""

    reply: Answer
    recorded: bool
    scouted: Rate = field(default_factory=lambda: Rate(0, 0))
    rate: Rate = field(default_factory=lambda: Rate(0, 0))
    turn: Turn | None = None


@dataclass
class Miner:
    """Tries other replies with one agent in one environment, within a budget."""

    environment_class: type[Environment]
    agent: Agent
    config: CounterfactualConfig
    limits: LimitsConfig
    seed: int = 0
    cost: Cost = field(default_factory=Cost)
    tell: Callable[[Cost], None] | None = None
    journal: Journal | None = None

    async def pairs(self, rounds: Sequence[Round], ledger: Ledger, *, against: str | None = None) -> list[Pair]:
        """A pair for each round where one reply is better than another with the required certainty."""
        found: list[Pair] = []
        waiting = list(rounds)
        while wave := self._wave(waiting):
            del waiting[: len(wave)]
            for result in await self._results(wave, against or self.config.against):
                if isinstance(result, str):
                    ledger.drop(result)
                else:
                    ledger.keep()
                    found.append(result)
            if self.tell is not None:
                self.tell(self.cost)
        if waiting:
            ledger.drop("budget", len(waiting))
        return found

    async def _results(self, wave: Sequence[Round], against: str) -> list[Result]:
        known = self.journal.recall(wave) if self.journal is not None else None
        if known is not None:
            results, spent = known
            self.cost.become(spent)
            return results
        results = await _gather(self._look_into(one, against) for one in wave)
        if self.journal is not None:
            self.journal.add(wave, results, self.cost.to_json())
        return results

    def _wave(self, waiting: Sequence[Round]) -> list[Round]:
        """The next rounds to play at the same time: as many as the budget covers in the worst case.

        The budget is never exceeded, and the choice depends only on the cost so far.
        """
        config = self.config
        episodes = (config.samples + 1) * config.scouts + 2 * config.plays
        left_episodes = config.max_episodes - self.cost.episodes
        left_turns = inf if config.max_sampled_turns is None else config.max_sampled_turns - self.cost.sampled_turns
        wave: list[Round] = []
        for one in waiting[: max(1, config.concurrency // episodes)]:
            left_episodes -= episodes
            left_turns -= config.samples + episodes * max(0, self._longest - one.at - 1)
            if left_episodes < 0 or left_turns < 0:
                break
            wave.append(one)
        return wave

    @property
    def _longest(self) -> int:
        return self.limits.max_turns or self.environment_class.max_turns

    async def _look_into(self, one: Round, against: str) -> Pair | str:
        """The pair of a round, or why there is none."""
        if one.at >= self._longest:
            return "past_max_turns"
        self.cost.rounds += 1
        try:
            options = await self._options(one)
            if len(options) < 2:
                return "no_alternative"
            return await self._compare(one, options, against)
        except ReplayError:
            return "cannot_replay"
        except ContextFullError:
            return "context_full"
        except NoAdviceError:
            return NO_EXPERT
        except (EnvironmentFailedError, EngineError):
            return "environment_or_engine_failed"

    async def _compare(self, one: Round, options: list[Option], against: str) -> Pair | str:
        await self._play_on(one, options, "scout", self.config.scouts)
        for option in options:
            option.scouted, option.rate = option.rate, Rate(0, 0)
        tried = [option for option in options if option.turn is not None]
        rejectable = [option for option in tried if option.recorded or against == "worst"]
        if len(tried) < 2 or not rejectable:
            return "not_played_to_an_end"
        best = max(tried, key=lambda option: option.scouted.mean)
        worst = min(rejectable, key=lambda option: option.scouted.mean)
        if best.scouted.mean <= worst.scouted.mean:
            return "no_difference"
        await self._play_on(one, [best, worst], "play", self.config.plays)
        certainty = probability_better(best.rate, worst.rate)
        return self._pair(one, best, worst, certainty) if certainty >= self.config.certainty else "not_certain"

    async def _options(self, one: Round) -> list[Option]:
        """The recorded reply and the sampled ones, one per action."""
        trajectory, at = one.item.trajectory, one.at
        turn = trajectory.turns[at]
        options = {_effect(turn): Option(Answer(turn.reply, turn.call, "stop"), recorded=True)}
        sampled = await _gather(self._sample(one, number) for number in range(self.config.samples))
        for key, answer in sampled:
            options.setdefault(key, Option(answer, recorded=False))
        return list(options.values())

    async def _sample(self, one: Round, number: int) -> tuple[str, Answer]:
        """Another reply and its effect in the environment; replies with the same effect are one option."""
        trajectory, at = one.item.trajectory, one.at
        async with at_round(self.environment_class, trajectory, at) as environment:
            episode = f"{trajectory.id}@{at}?{number}"
            chat = self.agent.enter(environment, episode=episode, seed=self._seed(episode))
            try:
                answer = await chat.answer(conversation(trajectory.start, trajectory.turns[:at]), trajectory.tools)
            finally:
                chat.close()
            self.cost.sampled_turns += 1
            observation = await environment.step(answer.message)
        return _effect(Turn(reply=answer.message, action=observation.action, error=observation.error)), answer

    async def _play_on(self, one: Round, options: list[Option], stage: str, plays: int) -> None:
        """Plays each option to the end `plays` times, and counts successes."""
        branches: dict[str, Branch] = {}
        owner: dict[str, Option] = {}
        for place, option in enumerate(options):
            for play in range(plays):
                episode = f"{one.item.trajectory.id}@{one.at}.{place}#{stage}{play}"
                branches[episode] = Branch(one.item.trajectory, one.at, option.reply)
                owner[episode] = option

        def finished(played: Trajectory, images: object) -> None:  # noqa: ARG001
            self.cost.episodes += 1
            known = played.success is not None and played.stop != NO_EXPERT
            if len(played.turns) > one.at and known:
                option = owner[played.id]
                option.turn = option.turn or played.turns[one.at]
                option.rate += Rate(int(bool(played.success)), 1)
            self.cost.sampled_turns += max(0, len(played.turns) - one.at - 1)

        tally = await collect(
            LocalRunner.of(self.environment_class, BranchAgent(self.agent, branches), self.limits),
            [Attempt(episode, one.item.trajectory.task, self._seed(episode)) for episode in branches],
            finished,
            concurrency=self.config.concurrency,
            retries=self.config.retries,
        )
        self.cost.episodes += len(tally.lost)
        self.cost.lost_episodes += len(tally.lost)

    def _pair(self, one: Round, best: Option, worst: Option, certainty: float) -> Pair:
        assert best.turn is not None and worst.turn is not None
        sides = {"chosen": best, "rejected": worst}
        info: dict[str, JsonValue] = {
            "by": self.agent.name,
            "certainty": round(certainty, 4),
            "plays": {name: [side.rate.successes, side.rate.plays] for name, side in sides.items()},
            "scouts": {name: [side.scouted.successes, side.scouted.plays] for name, side in sides.items()},
            "rejected_was_recorded": worst.recorded,
        }
        margin = best.rate.mean - worst.rate.mean
        return round_pair(one.item, one.at, best.turn, worst.turn, reason=one.reason, margin=margin, info=info)

    def _seed(self, episode: str) -> int:
        return derived_seed(self.seed, episode)


async def _gather(several: Iterable[Awaitable[T]]) -> list[T]:
    """All results. The first error is raised only after every one has ended."""
    results = await asyncio.gather(*several, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _effect(turn: Turn) -> str:
    """What a reply does: its action. All invalid replies with the same error do the same."""
    return action_of(turn) if turn.error is None else f"({turn.error})"
