"""What members learn from: records on file in an order of each member's own, or groups that members play themselves."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bough.chat.builder import CallBuilder
from bough.config.training import TrainingConfig
from bough.environments.rubric import Rubric
from bough.errors import RowError
from bough.experiments.evolve_settings import EvolveConfig, Mixer
from bough.experiments.players import Players
from bough.files import derived_seed, json_digest
from bough.ledger import Ledger
from bough.methods.grpo import GRPOConfig, OnlineGRPO
from bough.online.gather import FlatGroups
from bough.online.player import LostError
from bough.rollouts.agents import ModelAgent
from bough.rollouts.collect import Tally, collect
from bough.rollouts.runner import Attempt, LocalRunner, attempts
from bough.training.method import CallSource, Example, GroupExample
from bough.training.plan import PlannedSource
from bough.types import Group, Task, Trajectory

# More updates than any member makes: its share of the data comes again and again.
ENDLESS = 2**31


@dataclass(frozen=True)
class Pupil:
    """A member that learns: its settings, how many updates it has made, and its weights of the data files."""

    config: TrainingConfig
    step: int
    mixture: Mapping[str, float] = field(default_factory=dict)


class RecordLessons:
    """Records in the order of a plan, shuffled for each member by its name; of several files, mixed by its weights.

    `examples` are those of each file by its name; a single file needs none. A member without a batch learns
    nothing. `tokens` were sampled for batches: none.
    """

    def __init__(self, examples: Mapping[str, Sequence[Example]], seed: int) -> None:
        self.examples, self.seed, self.tokens = examples, seed, 0
        self._sources: dict[str, _Plain | _Mixed] = {}

    def batches(self, pupils: Mapping[str, Pupil], update: int) -> dict[str, Sequence[Example]]:  # noqa: ARG002
        self._sources = {name: self._sources.get(name) or self._source(name, pupil) for name, pupil in pupils.items()}
        return {name: self._sources[name].batch(pupil.step) for name, pupil in pupils.items()}

    def _source(self, name: str, pupil: Pupil) -> _Plain | _Mixed:
        seed = derived_seed(self.seed, name)
        if pupil.mixture:
            return _Mixed(self.examples, pupil, seed)
        [examples] = self.examples.values()
        return _Plain(examples, pupil.config, seed)


class _Plain:
    """The records of one file, without end."""

    def __init__(self, examples: Sequence[Example], config: TrainingConfig, seed: int, **changes: int) -> None:
        optimizer = config.optimizer.model_copy(update={"max_steps": ENDLESS, **changes})
        self.source = PlannedSource(examples, config.model_copy(update={"seed": seed, "optimizer": optimizer}))

    def batch(self, step: int) -> Sequence[Example]:
        return self.source.batch(step).examples


class _Mixed:
    """The records of several files, each in an order of its own."""

    def __init__(self, examples: Mapping[str, Sequence[Example]], pupil: Pupil, seed: int) -> None:
        self.size = pupil.config.optimizer.batch_size
        self.mixer = Mixer(pupil.mixture)
        self.files = {
            name: _Plain(own, pupil.config, derived_seed(seed, name), batch_size=1) for name, own in examples.items()
        }

    def batch(self, step: int) -> Sequence[Example]:
        picks = self.mixer.picks(step * self.size, (step + 1) * self.size)
        return [example for name, number in picks for example in self.files[name].batch(number)]


# Groups of attempts that members play themselves, for GRPO: the same tasks for all, each at its own temperature.
# Nothing is sampled ahead: a batch is played with the weights that learn from it. After a kill the generation's
# batches are played again; on a CPU they are the same to the last bit.

log = logging.getLogger(__name__)
# Why a group whose attempts all have the same reward is dropped; there is advice for it.
ZERO_VARIANCE = "zero_variance"


class GroupLessons:
    """Plays the groups of an update, those of all members at the same time."""

    def __init__(self, config: EvolveConfig, players: Players, builder: CallBuilder) -> None:
        self.config, self.players, self.builder, self.tokens = config, players, builder, 0
        self._rubrics: dict[str, Rubric] = {}
        self.flat = FlatGroups()

    def batches(self, pupils: Mapping[str, Pupil], update: int) -> dict[str, Sequence[Example]]:
        settings = {name: _grpo(pupil) for name, pupil in pupils.items()}
        with self.players.playing():
            agents = self.players.agents({name: own.sampling for name, own in settings.items()})
            played = self.players.run(self._play(agents, settings, update))
        unused: Counter[str] = Counter()
        found = {name: self._examples(settings[name], groups, unused) for name, groups in played.items()}
        self.flat.warn()
        if unused.total():
            reasons = ", ".join(f"{count} {reason}" for reason, count in unused.most_common())
            log.warning("Update %d: groups were dropped: %s.", update, reasons)
        return {name: examples for name, examples in found.items() if examples}

    async def _play(
        self, agents: Mapping[str, ModelAgent], settings: Mapping[str, GRPOConfig], update: int
    ) -> dict[str, list[Group]]:
        seed = derived_seed(self.config.seed, f"update {update}")
        wanted = {
            name: list(attempts(self._tasks(update, own.optimizer.batch_size), own.rollouts.group_size, seed))
            for name, own in settings.items()
        }
        count = self.players.counting(sum(map(len, wanted.values())))
        working = [self._groups(agents[name], wanted[name], len(settings), count(name)) for name in settings]
        found, all_lost = dict[str, list[Group]](), dict[str, str]()
        for name, (groups, lost) in zip(settings, await asyncio.gather(*working), strict=True):
            found[name] = groups
            if not groups:  # its weights may have diverged; those of the others have not
                log.warning("Update %d: %s lost all of its episodes: %s.", update, name, next(iter(lost.values())))
                all_lost |= {f"{name}, {id}": why for id, why in lost.items()}
        if not any(found.values()):
            raise LostError(0, [f"{id}: {why}" for id, why in all_lost.items()])
        return found

    async def _groups(
        self, agent: ModelAgent, wanted: Sequence[Attempt], members: int, tell: Callable[[Tally], None]
    ) -> tuple[list[Group], dict[str, str]]:
        """The groups of one of several members that play at the same time, and why episodes were lost."""
        records: dict[str, Trajectory] = {}

        def keep(record: Trajectory, _: object) -> None:
            records[record.id] = record

        tally: Tally = await collect(
            LocalRunner.of(self.players.environment_class, agent, self.config.limits), wanted, keep,
            concurrency=max(1, self.config.fitness.concurrency // members), retries=self.config.fitness.retries,
            tell=tell,
        )  # fmt: skip
        self.tokens += tally.completion_tokens
        # In the order of the attempts, whichever episode ended first.
        tasks, by_task = {one.task.id: one.task for one in wanted}, dict[str, list[Trajectory]]()
        for one in wanted:
            if one.id in records:
                by_task.setdefault(one.task.id, []).append(records[one.id])
        groups = [Group(task=task, attempts=by_task[id]) for id, task in tasks.items() if id in by_task]
        return groups, tally.lost

    def _tasks(self, update: int, count: int) -> list[Task]:
        """The tasks of an update. All members begin with the same one; where tasks run out, the first comes again."""
        return self.players.lessons.slice(update * self.config.set_batch_size, count)

    def _examples(self, config: GRPOConfig, groups: Sequence[Group], unused: Counter[str]) -> list[GroupExample]:
        method, rubric = OnlineGRPO(config), self._rubric(config)
        found = []
        for group in groups:
            attempts = group.attempts if rubric is None else rubric.score_all(group.attempts)
            scored = group.model_copy(update={"attempts": attempts})
            try:
                found.append(method.example(scored, CallSource(self.builder, Ledger("calls"))))
            except RowError as error:
                self.flat.note(scored, error.reason)
                unused[error.reason] += error.reason != ZERO_VARIANCE
            else:
                self.flat.note(scored, "")
        return found

    def _rubric(self, config: GRPOConfig) -> Rubric | None:
        """The rewards with the member's weights; the same weights have one rubric, whose judges keep their answers."""
        if not config.rewards:
            return None
        key = json_digest(config.rewards, size=8)
        if key not in self._rubrics:
            self._rubrics[key] = Rubric(config.rewards, timeout_s=config.reward_timeout_s)
        return self._rubrics[key]


Lessons = RecordLessons | GroupLessons


def _grpo(pupil: Pupil) -> GRPOConfig:
    assert isinstance(pupil.config, GRPOConfig)
    return pupil.config
