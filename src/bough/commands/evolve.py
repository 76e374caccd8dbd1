"""`bough.evolve`: a population of adapters on records, selected by what they achieve."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from bough.chat.builder import CallBuilder
from bough.commands.models import LoadedModel, ModelLike, TemporaryFolder, TrainedModel, model_name
from bough.commands.objects import (
    EnvironmentLike,
    Rewards,
    Source,
    StrPath,
    is_path,
    records_of,
    reward_weights,
    where_to_play,
)
from bough.commands.table import Command, Stage
from bough.config.keywords import make_config, settings_of
from bough.config.run_folder import RunDir
from bough.data.base import IN_MEMORY
from bough.data.reader import read
from bough.errors import InputError
from bough.experiments.evolve import evolve as run
from bough.experiments.evolve_settings import EvolveConfig
from bough.experiments.members import FileFitness
from bough.ledger import plural
from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.methods.examples import head_of
from bough.policy.adapters import lora
from bough.policy.load import load_call_builder
from bough.policy.policy import Policy
from bough.policy.population import Population
from bough.terminal import console
from bough.terminal.tables import MembersProgress, fitness_text, members_table, settings_text
from bough.training.loop import MetricsFile
from bough.training.optimizer import OptimizerState
from bough.training.population import PopulationTrainer
from bough.types import Pair


class EvolvedModel(TrainedModel):
    """The winner: a trained model with the `lineage` of all members, one dictionary per member and generation.

    `report` has the fitness by which it was `selected`, that on `untouched` records or tasks, and
    the `shrinkage` between the two.
    """

    def __init__(self, *given: Any, lineage: Sequence[dict[str, Any]], **named: Any) -> None:
        super().__init__(*given, **named)
        self.lineage = list(lineage)

    def __repr__(self) -> str:
        selected, untouched = (self.report[key]["fitness"] for key in ("selected", "untouched"))
        facts = f"{self.report['metric']} {selected} when selected, {untouched} on untouched data"
        return f"<{self.name}: {self.report['winner']['name']}, {facts}; weights in {self.path}>"


@settings_of(EvolveConfig, "recipe", "own_agent", "mixture")
def evolve(
    model: ModelLike,
    train_file: Source | PreferenceGym | Mapping[str, Source] | None = None,
    *,
    eval_file: Source | None = None,
    test_file: Source | None = None,
    environment: EnvironmentLike | None = None,
    rewards: Rewards | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> EvolvedModel:
    """Train a population of adapters with different settings and breed it by fitness; returns the winner.

    `train_file`, `eval_file` and `test_file` are records in memory or paths: what members learn
    from, what they are compared on, and what only the winner is measured on. Without the last two,
    shares of the first are held out. With `environment`, a name or a class, members are compared by
    their success there; with `method="grpo"` they also learn from what they play there, and there
    is no `train_file`. `rewards` are names or functions, as in `bough.collect`. A `PreferenceGym` in
    place of `train_file` stands for its training and test data; a dictionary of several files or
    lists of records is a mixture, whose weights `mixture_weights` gives. `mutate` gives the settings that
    differ: `{"learning_rate": "1e-6..1e-4"}`.
    """
    if isinstance(train_file, PreferenceGym):
        if eval_file is not None:
            raise InputError("a PreferenceGym has its own held-out pairs; leave out eval_file")
        gym = train_file
        train_file, eval_file = gym.train_dataset, gym.test_dataset
    temporary = TemporaryFolder()
    start = model.save(temporary.path / "start") if isinstance(model, LoadedModel) else model
    folder = Path(output_dir) if output_dir is not None else temporary.path / "evolve"
    mixture = dict(train_file) if isinstance(train_file, Mapping) else {}
    sources = {"train_file": None if mixture else train_file, "eval_file": eval_file, "test_file": test_file}
    named: dict[str, Any] = {key: _file(one) for key, one in sources.items() if one is not None}
    if mixture:
        named["mixture"] = {key: _file(one) for key, one in mixture.items()}
    play = where_to_play(environment, None) | ({"rewards": reward_weights(rewards)} if rewards else {})
    config = make_config(EvolveConfig, "evolve", settings, model=model_name(start), output_dir=folder, **named, **play)
    train, held_out, test = (None if one is None or is_path(one) else records_of(one) for one in sources.values())
    mixed = {key: records_of(one) for key, one in mixture.items() if not is_path(one)}
    with MembersProgress(None if config.population.halving else config.population.generations) as progress:
        found = run(config, mixed or train, held_out, test, notify=console.announce, watch=progress)
    name = model.name if isinstance(model, LoadedModel | TrainedModel) else model_name(model)
    return EvolvedModel(
        f"{name}+evolve", found.weights,
        metrics=MetricsFile.read(RunDir(folder).metrics), report=found.report, ledgers=found.ledgers,
        lineage=found.lineage, keeps=(temporary, model),
    )  # fmt: skip


def _file(source: Source) -> Path:
    """How the settings name a source."""
    return Path(source) if is_path(source) else Path(IN_MEMORY)


# `bough evolve`.


def evolve_command(config: EvolveConfig) -> int:
    with MembersProgress(None if config.population.halving else config.population.generations) as progress:
        found = run(config, notify=console.announce, watch=progress)
    if config.as_json:
        console.print_json({**found.report, "folder": str(found.folder), "weights": str(found.weights)})
        return 0
    out, report = console.out(), found.report
    last = [line for line in found.lineage if line["generation"] == report["generations"] - 1]
    console.print_table(out, members_table(last))
    winner, metric = report["winner"], report["metric"]
    out.print(f"\nwinner {winner['name']}: {settings_text(winner)}", markup=False)
    out.print(f"{metric} {fitness_text(report['selected'])} when it was selected", markup=False)
    kept = f"{metric} {fitness_text(report['untouched'])} on data that no member was selected on"
    shrinkage = report["shrinkage"]
    out.print(kept if shrinkage is None else f"{kept}: shrinkage {shrinkage:.3g}", markup=False)
    empty = report.get("empty_updates", 0)
    note = f" and {empty:,} that taught nothing" if empty else ""
    out.print(
        f"{plural(report['updates'], 'update')}{note}, {plural(report['tokens_computed'], 'token')} computed",
        markup=False,
    )
    out.print(f"weights in {found.weights}", markup=False)
    return 0


# Preference data as an environment, and agents that learn from its batches: the loop of `bough evolve`, by hand.
#     gym = bough.PreferenceGym("pairs.jsonl", test_size=0.1, batch_size=16)     agents =
# bough.PreferenceAgent.population("smollm2", 4, beta=0.1, learning_rate=5e-5)     batch = gym.reset()     for agent
# in agents:         agent.learn(batch)     fitness = [agent.test(gym) for agent in agents]
# The names are AgileRL's. All agents of a population share one base model in memory.

# More updates than any agent makes: the learning rate does not decay.
ENDLESS = 2**31


class PreferenceGym:
    """Preference pairs in shuffled batches, with some of them held out.

    Without `test_dataset`, the pairs of a share `test_size` of the prompts are held out. `reset` and `step` give the
    next batch; after the last one of an epoch the pairs are shuffled again.
    """

    def __init__(
        self,
        train_dataset: Source,
        test_dataset: Source | None = None,
        *,
        test_size: float = 0.1,
        batch_size: int = 16,
        seed: int = 42,
    ) -> None:
        self.batch_size, self.num_epochs = batch_size, 0
        self._rng = random.Random(seed)  # noqa: S311  no secret
        self.train_dataset = _pairs(train_dataset)
        self.test_dataset = [] if test_dataset is None else _pairs(test_dataset)
        if not self.test_dataset:
            self.test_dataset, self.train_dataset = self._split(self.train_dataset, test_size)
        self._testing = False
        self._left: list[Pair] | None = None  # before the first batch

    def __len__(self) -> int:
        """The number of pairs that batches are made of."""
        return len(self._dataset)

    def reset(self) -> list[Pair]:
        """The first batch of a new epoch."""
        self._left = list(self._dataset)
        if not self._testing:
            self._rng.shuffle(self._left)
        return self.step()

    def step(self) -> list[Pair]:
        """The next batch."""
        if not self._left:
            self.num_epochs += self._left is not None and not self._testing
            return self.reset()
        batch, self._left = self._left[: self.batch_size], self._left[self.batch_size :]
        return batch

    @contextmanager
    def eval_mode(self) -> Iterator[Self]:
        """Within it, batches are of the held-out pairs in their order."""
        left, self._left, self._testing = self._left, [], True
        try:
            yield self
        finally:
            self._left, self._testing = left, False

    def _split(self, pairs: list[Pair], share: float) -> tuple[list[Pair], list[Pair]]:
        """A share of the prompts with all their pairs, and the other pairs: nothing that is tested was trained on."""
        prompts: dict[str, list[Pair]] = {}
        for pair in pairs:
            prompts.setdefault(head_of(pair.start), []).append(pair)
        count = max(1, round(share * len(prompts)))
        if count >= len(prompts):
            raise InputError(f"pairs with {plural(len(prompts), 'different prompt')} are too few to hold out {count}")
        shuffled = self._rng.sample(list(prompts.values()), len(prompts))
        held_out, rest = (
            [pair for of_prompt in some for pair in of_prompt] for some in (shuffled[:count], shuffled[count:])
        )
        return held_out, rest

    @property
    def _dataset(self) -> list[Pair]:
        return self.test_dataset if self._testing else self.train_dataset


class PreferenceAgent:
    """A member of a population that learns by DPO; make them with `population`."""

    def __init__(self, name: str, trainer: PopulationTrainer, builder: CallBuilder, config: DPOConfig) -> None:
        self.name, self.config = name, config
        self._trainer, self._builder = trainer, builder
        trainer.add(name, DPO(config), config, ENDLESS)

    @classmethod
    def population(cls, model: ModelLike, size: int, *, seed: int = 42, **settings: Any) -> list[Self]:
        """Agents with new adapters on one base model; `settings` are those of `bough dpo`."""
        import torch

        given = {"lr_scheduler": "constant", "warmup_ratio": 0.0, **settings, "model": model_name(model)}
        config = make_config(DPOConfig, "PreferenceAgent.population", given, train_file=Path(IN_MEMORY))
        policy = Policy.load(config.model, gradient_checkpointing=config.machine.gradient_checkpointing)
        population = Population(policy.train())
        trainer = PopulationTrainer(population, budget=config.machine.tokens_per_pass)
        builder = load_call_builder(
            config.model, config.calls.chat_template, max_length=config.calls.max_length, stride=config.calls.stride
        )
        torch.manual_seed(seed)  # new adapters are drawn at random
        names = [f"agent-{number}" for number in range(size)]
        for name in names:
            population.add(name, lora(config.lora))
        return [cls(name, trainer, builder, config) for name in names]

    def learn(self, experiences: Sequence[Pair], training: bool = True) -> dict[str, float]:
        """One update on a batch; without `training` the same numbers, and nothing changes."""
        work, name = {self.name: self._examples(experiences)}, self.name
        found = self._trainer.update(work)[name].gradient if training else self._trainer.measure(work)[name]
        rewards = {f"mean_{name}": found.metrics[name].value for name in ("chosen_reward", "rejected_reward")}
        return {"mean_loss": found.loss, **rewards}

    def test(self, env: PreferenceGym) -> float:
        """The fitness: the share of the held-out pairs whose chosen side the agent prefers, against its reference."""
        examples = self._examples(env.test_dataset)
        population, budget = self._trainer.population, self._trainer.budget
        fitness = FileFitness(population, DPO(self.config), examples, (), metric="accuracy", budget=budget)
        return fitness.measured([self.name], examples)[self.name].fitness

    def clone(self, name: str, **changes: Any) -> Self:
        """Another agent with the same adapter and optimizer state, and with some settings changed."""
        config = make_config(DPOConfig, "PreferenceAgent.clone", {**self.config.flat_dump(), **changes})
        with TemporaryDirectory(prefix="bough-") as folder:
            self.save_checkpoint(Path(folder) / name)
            self._trainer.population.add(name, Path(folder) / name)
        twin = type(self)(name, self._trainer, self._builder, config)
        mine, other = (self._trainer.training[one] for one in (self.name, name))
        state = OptimizerState.of(mine.updater.optimizer)
        # Copies: an optimizer keeps the tensors that it is given, and changes them in place.
        copied = state._replace(tensors={key: tensor.clone() for key, tensor in state.tensors.items()})
        copied.put_into(other.updater.optimizer)
        other.step = mine.step
        return twin

    def save_checkpoint(self, path: StrPath) -> Path:
        """Writes the adapter: a folder that `peft` and every command load."""
        self._trainer.population.members[self.name].save(Path(path))
        return Path(path)

    def _examples(self, pairs: Sequence[Pair]) -> list[Preference]:
        return list(DPO(self.config).examples(pairs, self._builder).examples)


def _pairs(source: Source) -> list[Pair]:
    records = list(read(Path(source))) if is_path(source) else records_of(source)
    if wrong := next((one for one in records if not isinstance(one, Pair)), None):
        raise InputError(f"a {type(wrong).__name__.lower()} is not a preference pair")
    return [one for one in records if isinstance(one, Pair)]


COMMANDS = {
    "evolve": Command(
        EvolveConfig,
        evolve_command,
        "  bough evolve --train-file pairs.jsonl --model smollm2 --mutate learning_rate=1e-6..1e-4 beta=0.01..0.5\n"
        "  bough evolve agilerl-population --model smollm2 --train-file pairs.jsonl\n"
        "  bough evolve --method sft --train-file demos.jsonl --environment web --mutate learning_rate=1e-5..1e-3",
        stage=Stage(
            "pairs",
            "model",
            "final",
            "output_dir",
            "train_file",
            resumes=True,
            reads_by_method={"sft": "demonstrations", "grpo": None},
            instead="mixture",
        ),
    ),
}
