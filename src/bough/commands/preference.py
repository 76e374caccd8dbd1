"""Preference data as an environment, and agents that learn from its batches: the loop of `bough evolve`, by hand.

    gym = bough.PreferenceGym("pairs.jsonl", test_size=0.1, batch_size=16)
    agents = bough.PreferenceAgent.population("smollm2", 4, beta=0.1, learning_rate=5e-5)
    batch = gym.reset()
    for agent in agents:
        agent.learn(batch)
    fitness = [agent.test(gym) for agent in agents]

The names are AgileRL's. All agents of a population share one base model in memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch

from bough.chat.template import CallBuilder
from bough.commands.models import ModelLike, model_name
from bough.commands.objects import Source, StrPath, is_path, records_of
from bough.config.keywords import make_config
from bough.data.base import IN_MEMORY
from bough.data.reader import read
from bough.errors import InputError
from bough.experiments.generation import Records
from bough.experiments.members import FileFitness
from bough.ledger import plural
from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.policy.adapters import lora
from bough.policy.load import load_call_builder
from bough.policy.policy import Policy
from bough.policy.population import Population
from bough.training.checkpoint import OptimizerState
from bough.training.method import head_of
from bough.training.population import PopulationTrainer
from bough.types import Pair

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
        fitness = FileFitness(population, DPO(self.config), Records([], examples, [], [], ""), "accuracy", budget)
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
