"""Mines every requested kind of pairs, with one agent, one budget and a ledger per kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bough.config.curation import PairsConfig
from bough.curation.counterfactual import Cost, Miner
from bough.curation.episode_pairs import PROGRESS, SUCCESS, episode_pairs
from bough.curation.failure_pairs import failure_pairs
from bough.curation.journal import Journal
from bough.curation.lookup import EnvironmentLookup
from bough.curation.right_steps import RIGHT_STEP, right_steps
from bough.curation.round_pairs import PARTING, round_pairs
from bough.curation.rounds import COUNTERFACTUAL, Round, sample_rounds
from bough.curation.shares import balanced
from bough.curation.source import SourcedTrajectory
from bough.environments.base import Environment
from bough.environments.isolated import shut_down
from bough.ledger import Ledger
from bough.rollouts.agents import Agent, make_agent
from bough.types import Pair

# What a pair can be made for, besides the mistakes that rules find.
PAIR_REASONS = (SUCCESS, PROGRESS, PARTING, RIGHT_STEP, COUNTERFACTUAL)


class PairWork:
    """Mines the requested kinds of pairs; environments and the agent are opened when they are first needed."""

    def __init__(
        self, config: PairsConfig, filed: Sequence[SourcedTrajectory], tell: Callable[[Cost], None] | None = None
    ) -> None:
        self.config, self.filed, self.tell = config, filed, tell
        self.ledgers: list[Ledger] = []
        self.cost = Cost()
        self.journal: Journal | None = None
        self.lookup = EnvironmentLookup(
            config.environment,
            config.failure_modes.rules,
            config.failure_modes.rule_options,
            required="counterfactual" in config.kinds,
        )
        self._agent: Agent | None = None

    async def mine(self) -> list[Pair]:
        """The pairs of all kinds, within their caps and shares."""
        config = self.config
        self.lookup.check_reasons(config.failure_modes.reasons, self.filed, ())
        self.lookup.check_reasons([*config.failure_modes.caps, *config.failure_modes.shares], self.filed, PAIR_REASONS)
        found = await self._every_kind()
        return balanced(
            found, config.failure_modes.caps, config.failure_modes.shares, self._ledger("pairs"), seed=config.seed
        )

    async def _every_kind(self) -> list[Pair]:
        config, lookup = self.config, self.lookup
        spoken = [_conversation(item) for item in self.filed]
        found: list[Pair] = []
        try:
            if "episode" in config.kinds:
                ledgers = self._ledger("episodes"), self._ledger("candidates for episode pairs")
                found += episode_pairs(self.filed, config.episodes, *ledgers, reward=config.reward)
            if "parting" in config.kinds:
                ledger = self._ledger("failures, compared with successes")
                found += round_pairs(spoken, ledger, rules_of=lookup.rules_of)
            if "failure_mode" in config.kinds:
                lookup.learn(spoken)
                found += await failure_pairs(
                    spoken, config.failure_modes, self._ledger("mistakes"),
                    environment_of=lookup.environment_of, rules_of=lookup.rules_of, miner=self.miner,
                )  # fmt: skip
            if "right_step" in config.kinds:
                found += await right_steps(
                    spoken, config.failure_modes, self._ledger("steps of successes, against mistakes"),
                    environment_of=lookup.environment_of, rules_of=lookup.rules_of, seed=config.seed,
                )  # fmt: skip
            if "counterfactual" in config.kinds:
                found += await self._counterfactual(self._ledger("rounds, tried with other replies"))
        finally:
            if self._agent is not None:
                await self._agent.close()
            for environment_class in lookup.opened:
                await shut_down(environment_class)
        return found

    async def _counterfactual(self, ledger: Ledger) -> list[Pair]:
        rounds = sample_rounds(
            list(map(_conversation, self.filed)), self.config.counterfactual.rounds, self.config.seed
        )
        by_environment: dict[type[Environment] | None, list[Round]] = {}
        for one in rounds:
            by_environment.setdefault(self.lookup.environment_of(one.item), []).append(one)
        found: list[Pair] = []
        for environment_class, of_environment in by_environment.items():
            if environment_class is None:
                ledger.drop("environment_unknown", len(of_environment))
            else:
                found += await (await self.miner(environment_class)).pairs(of_environment, ledger)
        return found

    async def miner(self, environment_class: type[Environment]) -> Miner:
        """A miner in one environment. All miners share one agent and one budget."""
        if self._agent is None:
            self._agent = await make_agent(self.config.agent, self.config.sampling)
            self.journal = Journal(self.config, self.filed)
        return Miner(
            environment_class,
            self._agent,
            self.config.counterfactual,
            self.config.limits,
            self.config.seed,
            self.cost,
            self.tell,
            self.journal,
        )

    def forget(self) -> None:
        """Removes what a resumed run would need; call it when the pairs are written."""
        if self.journal is not None:
            self.journal.remove()

    def _ledger(self, item: str) -> Ledger:
        self.ledgers.append(Ledger(item))
        return self.ledgers[-1]


def _conversation(item: SourcedTrajectory) -> SourcedTrajectory:
    """The episode without its branches: two replies in one round must answer the same messages."""
    turns = [turn for turn in item.trajectory.turns if turn.prompt is None]
    if len(turns) == len(item.trajectory.turns):
        return item
    return replace(item, trajectory=item.trajectory.model_copy(update={"turns": turns}))
