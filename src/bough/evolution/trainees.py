"""The members of a generation in memory: on one base model, trained together, each with its own settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bough.config.training import TrainingConfig
from bough.digest import derived_seed
from bough.errors import InputError
from bough.evolution.generation import Generation
from bough.evolution.individual import OPTIMIZER, Individual
from bough.evolution.member_settings import trained_by
from bough.evolution.settings import EvolveConfig
from bough.methods.base import Example, Method
from bough.methods.dpo import DPO, DPOConfig
from bough.methods.sft import SFT, SFTConfig
from bough.policy.population import Population
from bough.policy.shape import lora
from bough.training.optimizer_state import OptimizerState
from bough.training.population import PopulationTrainer
from bough.training.source import PlannedSource

# More updates than any member makes: its share of the data comes again and again.
ENDLESS = 2**31


def method_of(config: TrainingConfig) -> Method[Any]:
    """The method that these settings are for."""
    if isinstance(config, DPOConfig):
        return DPO(config)
    assert isinstance(config, SFTConfig)
    return SFT(config)


class Trainees:
    """Loads members from the folders of a generation, trains them, and saves them.

    A member that lives on stays in memory: its weights there are the bits of its files.
    """

    def __init__(self, config: EvolveConfig, population: Population, examples: Sequence[Example], budget: int) -> None:
        self.config, self.population, self.examples = config, population, examples
        self.trainer = PopulationTrainer(population, budget=budget, share=trained_by(config, {}).machine.share)
        self.individuals: dict[str, Individual] = {}
        self._sources: dict[str, PlannedSource] = {}

    def found(self, founders: Sequence[Individual], start: Path | None, draft: Path) -> None:
        """Writes the first generation: copies of the adapter `start`, or new adapters that change nothing yet."""
        for individual in founders:
            torch.manual_seed(derived_seed(self.config.seed, individual.name))  # a new adapter is drawn at random
            shape = lora(self._settings(individual).lora)
            self.population.add(individual.name, shape if start is None else start)
            self._enter(individual)
        self.save(draft)

    def load(self, generation: Generation) -> None:
        """Makes the members of `generation` those in memory."""
        wanted = generation.individuals()
        for name, individual in wanted.items():
            if name not in self.individuals:
                self.population.add(name, generation.folder(name))
                self._enter(individual)
                self._restore(individual, generation.folder(name))
        for name in [name for name in self.individuals if name not in wanted]:
            self.population.remove(name)
            for known in (self.individuals, self._sources, self.trainer.training):
                known.pop(name)
        self.individuals = {name: self.individuals[name] for name in wanted}

    def train(self, generation: int, steps: int) -> tuple[dict[str, float], int]:
        """`steps` updates of each member; returns the members' mean losses and the number of tokens computed."""
        torch.manual_seed(derived_seed(self.config.seed, f"generation {generation}"))  # dropout
        self.population.policy.train()
        losses: dict[str, list[float]] = {name: [] for name in self.individuals}
        tokens = 0
        for _ in range(steps):
            batches = {
                name: self._sources[name].batch(self.trainer.training[name].step).examples for name in self.individuals
            }
            for name, update in self.trainer.update(batches).items():
                losses[name].append(update.gradient.loss)
                tokens += update.gradient.tokens_computed
        self.individuals = {
            name: replace(one, step=self.trainer.training[name].step) for name, one in self.individuals.items()
        }
        return {name: _mean(values) for name, values in losses.items()}, tokens

    def save(self, draft: Path) -> None:
        """Writes every member into its folder."""
        for name, individual in self.individuals.items():
            self.population.members[name].save(draft / name)
            state = OptimizerState.of(self.trainer.training[name].updater.optimizer)
            if state.tensors:
                save_file({key: tensor.cpu() for key, tensor in state.tensors.items()}, draft / name / OPTIMIZER)
            replace(individual, optimizer=state.numbers).write(draft / name)

    def _enter(self, individual: Individual) -> None:
        """Gives a member of the population its method, its optimizer and its order of the data."""
        config, name = self._settings(individual), individual.name
        self.trainer.add(name, method_of(config), config, ENDLESS)
        self.trainer.training[name].step = individual.step
        ordered = config.model_copy(
            update={
                "seed": derived_seed(self.config.seed, name),
                "optimizer": config.optimizer.model_copy(update={"max_steps": ENDLESS}),
            }
        )
        self._sources[name] = PlannedSource(self.examples, ordered)
        self.individuals[name] = individual

    def _restore(self, individual: Individual, folder: Path) -> None:
        """Puts the moments in the folder into the member's optimizer."""
        if not (folder / OPTIMIZER).exists():
            return
        optimizer = self.trainer.training[individual.name].updater.optimizer
        try:
            OptimizerState(load_file(folder / OPTIMIZER), individual.optimizer).checked(optimizer).put_into(optimizer)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise InputError(f"{folder / OPTIMIZER} is damaged: {error}") from error

    def _settings(self, individual: Individual) -> TrainingConfig:
        return trained_by(self.config, individual.settings)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else math.nan
