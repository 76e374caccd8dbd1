"""The members of a generation in memory: on one base model, trained together, each with its own settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bough.chat.template import CallBuilder
from bough.config.training import TrainingConfig
from bough.environments.base import Environment
from bough.errors import InputError
from bough.experiments.evolve_settings import EvolveConfig, trained_by
from bough.experiments.generation import OPTIMIZER, Generation, Individual, Records, Score
from bough.experiments.playing import GroupLessons, Players
from bough.files import derived_seed
from bough.ledger import Mean, add_metrics
from bough.methods.dpo import DPO, DPOConfig
from bough.methods.grpo import GRPOConfig, OnlineGRPO
from bough.methods.sft import SFT, SFTConfig
from bough.policy.adapters import load_named, lora
from bough.policy.head import coefficient
from bough.policy.load import base_and_adapter, load_model
from bough.policy.policy import Policy
from bough.policy.population import Population
from bough.policy.processes import Processes
from bough.training.checkpoint import OptimizerState
from bough.training.method import Example, Loss, Method
from bough.training.plan import PlannedSource, choose_budget, training_bytes
from bough.training.population import PopulationStep, PopulationTrainer, Work
from bough.training.run import precision

# More updates than any member makes: its share of the data comes again and again.
ENDLESS = 2**31
# Gets the number of updates that are done and the losses of the last one by member.
Each = Callable[[int, dict[str, float]], None]


def method_of(config: TrainingConfig) -> Method[Any]:
    """The method that these settings are for."""
    if isinstance(config, DPOConfig):
        return DPO(config)
    if isinstance(config, GRPOConfig):
        return OnlineGRPO(config)
    assert isinstance(config, SFTConfig)
    return SFT(config)


@dataclass(frozen=True)
class Trained:
    """What the updates of a generation gave: mean losses, tokens computed and sampled, updates that changed nothing."""

    losses: dict[str, float]
    tokens: int
    empty: int


@dataclass(frozen=True)
class Members:
    """What trains and measures the members in this process.

    `players` is None where there is no environment; `file_fitness` has no records where there is one.
    """

    trainees: Trainees
    file_fitness: FileFitness
    players: Players | None


@contextmanager
def members_here(
    config: EvolveConfig,
    base: TrainingConfig,
    start: Path | None,
    builder: CallBuilder,
    records: Records,
    environment_class: type[Environment] | None = None,
) -> Iterator[Members]:
    """Loads the base model. `base` are the method's settings before mutations, `start` is the adapter to refer to.

    `environment_class` is that of the settings, where it cannot be found by its name.
    """
    processes = Processes()
    population = _population(base, processes.device)
    if start is not None:
        population.refer_to(start)
    budget = base.machine.token_budget or choose_budget(base, processes)
    with ExitStack() as stack:
        lessons: RecordLessons | GroupLessons = RecordLessons(records.train, config.seed)
        players = None
        if config.environment.name:
            # The engine leaves training the bytes that it needs.
            needed = training_bytes(
                population.policy.base, budget, adapter=True, gradient_checkpointing=base.machine.gradient_checkpointing
            )
            playing = Players(
                config, population, builder.template, environment_class, records.tasks, training_bytes=needed
            )
            players = stack.enter_context(closing(playing))
            if config.method == "grpo":
                lessons = GroupLessons(config, players, builder)
        fitness = FileFitness(population, method_of(base), records, config.metric, budget)
        yield Members(Trainees(config, population, lessons, budget), fitness, players)


def _population(base: TrainingConfig, device: torch.device) -> Population:
    """The base model with all its weights frozen, and no members yet."""
    autocast = precision(base, device)
    model = load_model(base_and_adapter(base.model)[0], dtype=autocast or torch.float32, device=device, quantize=False)
    if base.machine.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(model, attention=base.machine.attention, autocast=autocast, device=device)
    if weight := coefficient(policy.decoder, base.optimizer.router_aux_loss_coef):
        raise InputError(
            f"router_aux_loss_coef is {weight:g}, by the settings or the model's config: bough evolve does not compute "
            "the load-balancing loss of a mixture of experts; train without it: --set router_aux_loss_coef=0"
        )
    return Population(policy)


class RecordLessons:
    """Records in the order of a plan, shuffled for each member by its name. `tokens` were sampled for them: none."""

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        self.examples, self.seed, self.tokens = examples, seed, 0
        self._sources: dict[str, PlannedSource] = {}

    def batches(self, pupils: Mapping[str, tuple[TrainingConfig, int]], update: int) -> dict[str, Sequence[Example]]:  # noqa: ARG002
        """The records of each member, by its settings and the number of updates that it has made."""
        self._sources = {
            name: self._sources.get(name) or self._source(name, config) for name, (config, _) in pupils.items()
        }
        return {name: self._sources[name].batch(step).examples for name, (_, step) in pupils.items()}

    def _source(self, name: str, config: TrainingConfig) -> PlannedSource:
        optimizer = config.optimizer.model_copy(update={"max_steps": ENDLESS})
        seed = derived_seed(self.seed, name)
        return PlannedSource(self.examples, config.model_copy(update={"seed": seed, "optimizer": optimizer}))


class Trainees:
    """Loads members from the folders of a generation, trains them, and saves them."""

    def __init__(
        self, config: EvolveConfig, population: Population, lessons: RecordLessons | GroupLessons, budget: int
    ) -> None:
        self.config, self.population, self.lessons = config, population, lessons
        self.trainer = PopulationTrainer(population, budget=budget, share=trained_by(config, {}).machine.share)
        self.individuals: dict[str, Individual] = {}

    def found(self, founders: Sequence[Individual], start: Path | None, draft: Path) -> None:
        """Writes the first generation: copies of the adapter `start`, or new adapters that change nothing yet."""
        for individual in founders:
            torch.manual_seed(derived_seed(self.config.seed, individual.name))  # a new adapter is drawn at random
            shape = lora(trained_by(self.config, individual.settings).lora)
            self.population.add(individual.name, shape if start is None else start)
            self._enter(individual)
        self.save(draft)

    def load(self, generation: Generation) -> None:
        """Makes the members of `generation` those in memory.

        A survivor stays there: name and number of updates say that its weights are the bits of its files.
        """
        wanted = generation.individuals()
        for name, individual in wanted.items():
            folder = generation.folder(name)
            if name not in self.individuals:
                self.population.add(name, folder)
            elif self.individuals[name].step == individual.step:
                continue
            else:  # another worker has trained it further
                load_named(self.population.policy.model, folder, name=name)
            self._enter(individual)
            if (folder / OPTIMIZER).exists():
                optimizer = self.trainer.training[name].updater.optimizer
                try:
                    moments = OptimizerState(load_file(folder / OPTIMIZER), individual.optimizer)
                    moments.checked(optimizer).put_into(optimizer)
                except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                    raise InputError(f"{folder / OPTIMIZER} is damaged: {error}") from error
        for name in [name for name in self.individuals if name not in wanted]:
            self.population.remove(name)
            del self.individuals[name], self.trainer.training[name]
        self.individuals = {name: self.individuals[name] for name in wanted}

    def train(self, generation: int, first: int, steps: int, *, each: Each = lambda _done, _losses: None) -> Trained:
        """`steps` updates of each member, the first being number `first` of the run; `each` is called after each."""
        torch.manual_seed(derived_seed(self.config.seed, f"generation {generation}"))  # dropout
        self.population.policy.train()
        losses: dict[str, list[float]] = {name: [] for name in self.individuals}
        tokens, empty, sampled = 0, 0, self.lessons.tokens
        for update in range(first, first + steps):
            training = {name: self.trainer.training[name] for name in self.individuals}
            batches = self.lessons.batches({name: (own.config, own.step) for name, own in training.items()}, update)
            for name in training.keys() - batches.keys():
                training[name].step += 1  # there was nothing to learn from
                empty += 1
            for name, done in self.trainer.update(batches).items() if batches else ():
                losses[name].append(done.gradient.loss)
                tokens += done.gradient.tokens_computed
                empty += done.skipped
            each(update - first + 1, {name: losses[name][-1] for name in batches if losses[name]})
        self.individuals = {
            name: replace(one, step=self.trainer.training[name].step) for name, one in self.individuals.items()
        }
        finite = {name: [value for value in values if math.isfinite(value)] for name, values in losses.items()}
        means = {name: fmean(values) if values else math.nan for name, values in finite.items()}
        return Trained(means, tokens + self.lessons.tokens - sampled, empty)

    def save(self, draft: Path) -> None:
        """Writes every member into its folder."""
        for name, individual in self.individuals.items():
            self.population.members[name].save(draft / name)
            state = OptimizerState.of(self.trainer.training[name].updater.optimizer)
            if state.tensors:
                save_file({key: tensor.cpu() for key, tensor in state.tensors.items()}, draft / name / OPTIMIZER)
            replace(individual, optimizer=state.numbers).write(draft / name)

    def save_adapter(self, name: str, folder: Path) -> None:
        """Writes the adapter of one member, without its moments."""
        self.population.members[name].save(folder)

    def _enter(self, individual: Individual) -> None:
        """Gives a member of the population its method and its optimizer."""
        config, name = trained_by(self.config, individual.settings), individual.name
        self.trainer.add(name, method_of(config), config, ENDLESS)
        self.trainer.training[name].step = individual.step
        self.individuals[name] = individual


# Fitness on held-out records: preference accuracy, or the negative loss, record by record.
# All members are measured by the method's settings as given, not by their own: with another β the loss of the same
# model is another number.


class FileFitness:
    """Measures members of a population on records; `metric` is accuracy or loss."""

    def __init__(self, population: Population, method: Method[Any], records: Records, metric: str, budget: int) -> None:
        self.population, self.method, self.records = population, method, records
        self.metric, self.budget = metric, budget

    def of(self, generation: Generation) -> dict[str, Score]:
        """The scores of the members of a generation, on the same records each time."""
        return self.measured(generation.members, self.records.selection)

    def of_winner(self, generation: Generation, name: str) -> Score:  # noqa: ARG002  the member is in memory
        """The score of one member on records that no member was selected on."""
        return self.measured([name], self.records.test)[name]

    def measured(self, names: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        """The scores of members on some records.

        As in an update, one member's NaN reaches all members in its rows: whose result is not finite
        is measured again in rows of its own.
        """
        recorders = self._recorded(names, examples)
        for name in [name for name in names if len(names) > 1 and not recorders[name].finite]:
            recorders |= self._recorded([name], examples)
        return {name: self._score(recorder) for name, recorder in recorders.items()}

    def _recorded(self, names: Sequence[str], examples: Sequence[Example]) -> dict[str, _Recorder]:
        """What each member's loss and metrics are, all members in common rows."""
        recorders = {name: _Recorder(self.method) for name in names}
        methods: dict[str, Any] = dict(recorders)
        work = {name: Work(method, examples) for name, method in methods.items()}
        policy = self.population.policy
        training = policy.training
        policy.eval()
        try:
            PopulationStep(self.population, work, budget=self.budget).run(backward=False)
        finally:
            policy.train(training)
        return recorders

    def _score(self, recorder: _Recorder) -> Score:
        sign, name = (1.0, "accuracy") if self.metric == "accuracy" else (-1.0, recorder.LOSS)
        values = {place: sign * metrics[name].value for place, metrics in recorder.metrics.items()}
        rate = self.metric == "accuracy" and all(map(math.isfinite, values.values()))
        return Score(values, rate=rate, families=recorder.clusters)


class _Recorder:
    """The method, noting the metrics and the loss of each record by its place."""

    LOSS = "loss"

    def __init__(self, method: Method[Any]) -> None:
        self.method = method
        self.metrics: dict[str, dict[str, Mean]] = {}
        self.clusters: dict[str, str] = {}
        self._place: dict[int, str] = {}
        self._parts: list[Example] = []  # kept: their ids name them

    def __getattr__(self, name: str) -> Any:
        """All else is the method's."""
        return getattr(self.method, name)

    @property
    def finite(self) -> bool:
        """Whether the loss of every record is."""
        return all(math.isfinite(metrics[self.LOSS].value) for metrics in self.metrics.values())

    def parts(self, example: Example) -> list[Example]:
        found: list[Example] = self.method.parts(example)
        self._parts += found
        self._place |= {id(part): example.place for part in found}
        self.clusters |= {example.place: example.cluster} if example.cluster else {}
        return found

    def loss(
        self,
        parts: Sequence[Example],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
    ) -> Loss:
        for number, part in enumerate(parts):
            amount = self.method.amount(part)
            one = self.method.loss(
                [part], [logprobs[number]], [reference[number]] if reference is not None else None, amount
            )
            noted = {**one.metrics, self.LOSS: Mean(one.value.detach() * amount, amount)}
            place = self._place[id(part)]
            self.metrics[place] = add_metrics([self.metrics.get(place, {}), noted])
        return self.method.loss(parts, logprobs, reference, denominator)
