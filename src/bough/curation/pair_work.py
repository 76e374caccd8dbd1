"""Mining all the kinds of pairs that were asked for, with one agent, one budget and a ledger for each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bough.config.code_names import is_code
from bough.config.curation import PairsConfig
from bough.curation.counterfactual import Cost, Miner
from bough.curation.episode_pairs import episode_pairs
from bough.curation.failure_pairs import failure_pairs
from bough.curation.journal import Journal
from bough.curation.right_steps import right_steps
from bough.curation.round_pairs import round_pairs
from bough.curation.rounds import telling_rounds
from bough.curation.shares import balanced
from bough.curation.source import SourcedTrajectory
from bough.environments.base import Environment
from bough.environments.isolated import shut_down
from bough.environments.registry import find, find_listed
from bough.errors import InputError
from bough.ledger import Ledger
from bough.rollouts.agents import Agent, make_agent
from bough.types import Pair


class PairWork:
    """Mines the kinds of pairs that were asked for; worlds and the agent are opened when they are needed."""

    def __init__(
        self, config: PairsConfig, filed: Sequence[SourcedTrajectory], tell: Callable[[Cost], None] | None = None
    ) -> None:
        self.config, self.filed, self.tell = config, filed, tell
        self.ledgers: list[Ledger] = []
        self.cost = Cost()
        self.journal: Journal | None = None
        self._agent: Agent | None = None
        self._kinds: dict[str | None, type[Environment] | None] = {}

    async def mine(self) -> list[Pair]:
        """The pairs of all kinds, within their caps and shares."""
        found = await self._every_kind()
        config = self.config
        return balanced(found, config.caps, config.shares, self._ledger("pairs"), seed=config.seed)

    async def _every_kind(self) -> list[Pair]:
        config = self.config
        found: list[Pair] = []
        try:
            if "episode" in config.kinds:
                ledgers = self._ledger("episodes"), self._ledger("candidates for episode pairs")
                found += episode_pairs(self.filed, config, *ledgers, reward=config.reward)
            if "parting" in config.kinds:
                found += round_pairs(self.filed, self._ledger("failures, for their parting from success"))
            if "failure_mode" in config.kinds:
                ledger = self._ledger("mistakes")
                found += await failure_pairs(self.filed, config, ledger, kinds=self.kind_of, miner=self.miner)
            if "right_step" in config.kinds:
                ledger = self._ledger("mistakes that successes did not make")
                found += await right_steps(self.filed, config, ledger, kinds=self.kind_of, seed=config.seed)
            if "counterfactual" in config.kinds:
                found += await self._counterfactual(self._ledger("rounds, for what else could be done"))
        finally:
            if self._agent is not None:
                await self._agent.close()
            for environment_class in filter(None, self._kinds.values()):
                await shut_down(environment_class)
        return found

    async def _counterfactual(self, ledger: Ledger) -> list[Pair]:
        rounds = telling_rounds(self.filed, self.config.rounds, self.config.seed)
        kinds = {id(one): self.kind_of(one.item) for one in rounds}
        found: list[Pair] = []
        for environment_class in dict.fromkeys(kinds.values()):
            of_kind = [one for one in rounds if kinds[id(one)] is environment_class]
            if environment_class is None:
                ledger.drop("world_unknown", len(of_kind))
            else:
                found += await (await self.miner(environment_class)).pairs(of_kind, ledger)
        return found

    async def miner(self, environment_class: type[Environment]) -> Miner:
        """A miner in one world. All share one agent and one budget."""
        if self._agent is None:
            self._agent = await make_agent(self.config, self.config)
            self.journal = Journal(self.config, self.filed)
        return Miner(
            environment_class,
            self._agent,
            self.config,
            self.config,
            self.config.seed,
            self.cost,
            self.tell,
            self.journal,
        )

    def forget(self) -> None:
        """The pairs are on file: what helps to go on after a kill can go."""
        if self.journal is not None:
            self.journal.remove()

    def kind_of(self, item: SourcedTrajectory) -> type[Environment] | None:
        """The world that a trajectory was played in; None where its task does not say."""
        name = self.config.environment or item.trajectory.task.environment
        if name not in self._kinds:
            self._kinds[name] = self._find(name, item) if name else None
        return self._kinds[name]

    def _find(self, name: str, item: SourcedTrajectory) -> type[Environment] | None:
        if self.config.environment:
            return find(name)
        if is_code(name):
            raise InputError(
                f"{item.file}:{item.line}: the task's environment is {name!r}. Code that a file names is not run; "
                f"if you trust it, give --environment {name}"
            )
        try:
            return find_listed(name)
        except InputError:
            if "counterfactual" in self.config.kinds:
                raise
            # A data file may name a world that is not installed here; what needs no world goes on.
            return None

    def _ledger(self, item: str) -> Ledger:
        self.ledgers.append(Ledger(item))
        return self.ledgers[-1]
