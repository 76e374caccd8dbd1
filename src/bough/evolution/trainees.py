"""The members of a generation in memory: on one base model, trained together, each with its own settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from bough.evolution.lessons import ENDLESS, Lessons, Pupil
from bough.evolution.member_settings import trained_by
from bough.evolution.mixture import file_weights
from bough.evolution.settings import EvolveConfig
from bough.methods.base import Method
from bough.methods.dpo import DPO, DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFT, SFTConfig
from bough.online.grpo import OnlineGRPO
from bough.policy.population import Population
from bough.policy.shape import lora
from bough.training.optimizer_state import OptimizerState
from bough.training.population import PopulationTrainer


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


class Trainees:
    """Loads members from the folders of a generation, trains them, and saves them.

    A member that lives on stays in memory: its weights there are the bits of its files.
    """

    def __init__(self, config: EvolveConfig, population: Population, lessons: Lessons, budget: int) -> None:
        self.config, self.population, self.lessons = config, population, lessons
        self.trainer = PopulationTrainer(population, budget=budget, share=trained_by(config, {}).machine.share)
        self.individuals: dict[str, Individual] = {}

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
            del self.individuals[name], self.trainer.training[name]
        self.individuals = {name: self.individuals[name] for name in wanted}

    def train(
        self,
        generation: int,
        first: int,
        steps: int,
        *,
        each: Callable[[int, dict[str, float]], None] = lambda _done, _losses: None,
    ) -> Trained:
        """`steps` updates of each member, the first being number `first` of the run.

        After each update, `each` gets the number of those that are done and the members' losses.
        """
        torch.manual_seed(derived_seed(self.config.seed, f"generation {generation}"))  # dropout
        self.population.policy.train()
        losses: dict[str, list[float]] = {name: [] for name in self.individuals}
        tokens, empty, sampled = 0, 0, self.lessons.tokens
        for update in range(first, first + steps):
            training = {name: self.trainer.training[name] for name in self.individuals}
            pupils = {
                name: Pupil(own.config, own.step, file_weights(self.config, self.individuals[name].settings))
                for name, own in training.items()
            }
            batches = self.lessons.batches(pupils, update)
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
        means = {name: _mean(values) for name, values in losses.items()}
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
        config, name = self._settings(individual), individual.name
        self.trainer.add(name, method_of(config), config, ENDLESS)
        self.trainer.training[name].step = individual.step
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
