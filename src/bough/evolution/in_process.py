"""Members in this process: the base model, and what trains and measures the members on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from bough.calls.builder import CallBuilder
from bough.calls.template import ChatTemplate
from bough.config.training import TrainingConfig
from bough.environments.base import Environment
from bough.evolution.file_fitness import FileFitness
from bough.evolution.group_lessons import GroupLessons
from bough.evolution.lessons import Lessons, RecordLessons
from bough.evolution.players import Players
from bough.evolution.records import Records
from bough.evolution.settings import EvolveConfig
from bough.evolution.trainees import Trainees, method_of
from bough.policy.host_memory import return_freed_memory
from bough.policy.load import base_and_adapter, load_model
from bough.policy.policy import Policy
from bough.policy.population import Population
from bough.policy.processes import Processes
from bough.training.loading import precision
from bough.training.token_budget import choose_budget, training_bytes


@dataclass(frozen=True)
class MembersHere:
    """`players` is None where there is no environment; `file_fitness` has no records where there is one."""

    trainees: Trainees
    file_fitness: FileFitness
    players: Players | None
    actors: None = None


@contextmanager
def members_here(
    config: EvolveConfig,
    base: TrainingConfig,
    start: Path | None,
    builder: CallBuilder,
    records: Records,
    environment_class: type[Environment] | None = None,
) -> Iterator[MembersHere]:
    """Loads the base model. `base` are the method's settings before mutations, `start` is the adapter to refer to.

    `environment_class` is that of the settings, where it cannot be found by its name.
    """
    processes = Processes()
    population = _population(base, processes.device)
    if start is not None:
        population.refer_to(start)
    budget = base.machine.token_budget or choose_budget(base, processes)
    needed = training_bytes(
        population.policy.base, budget, adapter=True, gradient_checkpointing=base.machine.gradient_checkpointing
    )
    with _players(config, population, builder.template, environment_class, needed) as players:
        lessons: Lessons = RecordLessons(records.train, config.seed)
        if players is not None and config.method == "grpo":
            lessons = GroupLessons(config, players, builder)
        fitness = FileFitness(
            population, method_of(base), records.selection, records.test, metric=config.metric, budget=budget
        )
        yield MembersHere(Trainees(config, population, lessons, budget), fitness, players)


@contextmanager
def _players(
    config: EvolveConfig,
    population: Population,
    template: ChatTemplate,
    environment_class: type[Environment] | None,
    needed: int,
) -> Iterator[Players | None]:
    """Those who play in the environment, and leave training the bytes it needs; None where there is none."""
    if not config.environment.name:
        yield None
        return
    with closing(Players(config, population, template, environment_class, training_bytes=needed)) as players:
        yield players


def _population(base: TrainingConfig, device: torch.device) -> Population:
    """The base model with all its weights frozen, and no members yet."""
    autocast = precision(base, device)
    model = load_model(base_and_adapter(base.model)[0], dtype=autocast or torch.float32, device=device, quantize=False)
    if base.machine.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if device.type == "cpu":
            return_freed_memory()
    return Population(Policy(model, attention=base.machine.attention, autocast=autocast, device=device))
