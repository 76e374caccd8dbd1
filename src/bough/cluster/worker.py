"""A process of the cluster that plays episodes: an environment, who plays in it, and the event loop that it runs on.

A `Worker` knows nothing of Ray. What it is made from travels as bytes and is read in `start`, so
that a node on which something is missing can say what.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from bough import bit_exact
from bough.config.rollouts import AgentConfig, LimitsConfig
from bough.config.sampling import SamplingConfig
from bough.engines.base import EngineError
from bough.environments.base import Environment, EnvironmentFailedError
from bough.environments.isolated import shut_down
from bough.errors import BoughError, InputError, exception_line
from bough.rollouts.agents import Agent, make_agent
from bough.rollouts.attempt import Attempt
from bough.rollouts.runner import Images, LocalRunner
from bough.types import Trajectory

# The errors that a caller may meet, by the word that travels instead of them: not every error can be pickled.
ERRORS: dict[str, type[BoughError]] = {
    "environment": EnvironmentFailedError,
    "engine": EngineError,
    "input": InputError,
    "other": BoughError,
}


class Agents(Protocol):
    """Who plays in a worker."""

    def playing(self, attempt: Attempt) -> AbstractAsyncContextManager[Agent]:
        """Who plays this attempt. Within the context it has the weights that the attempt needs."""

    async def renew(self, name: str, weights: Any) -> None:
        """Plays with these weights from now on."""

    async def close(self) -> None:
        """Releases everything."""


class AgentsFactory(Protocol):
    """Makes the agents of a worker, in the worker. It is pickled."""

    async def __call__(self) -> Agents: ...


@dataclass(frozen=True)
class OneAgent:
    """One agent plays all attempts, always with the same weights."""

    agent: Agent

    def playing(self, attempt: Attempt) -> AbstractAsyncContextManager[Agent]:  # noqa: ARG002
        return nullcontext(self.agent)

    async def renew(self, name: str, weights: Any) -> None:  # noqa: ARG002
        raise AssertionError(f"{self.agent.name} has no other weights")

    async def close(self) -> None:
        await self.agent.close()


@dataclass(frozen=True)
class ConfiguredAgent:
    """Makes the agent that the settings name."""

    config: AgentConfig
    sampling: SamplingConfig

    async def __call__(self) -> Agents:
        return OneAgent(await make_agent(self.config, self.sampling))


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is made from."""

    environment_class: type[Environment]
    make_agents: AgentsFactory
    limits: LimitsConfig


@dataclass(frozen=True)
class Surroundings:
    """What the process of a worker shares with the driver's: relative paths, the rounding of numbers, API keys.

    `gpus` is what the worker has of the GPUs of its node; with 0 it sees none.
    """

    folder: str = field(default_factory=os.getcwd)
    version: str = field(default_factory=lambda: version("bough"))
    variables: Mapping[str, str] = field(default_factory=dict)
    gpus: float = 0.0

    @classmethod
    def here(cls, *, variables: tuple[str, ...] = (), gpus: float = 0.0) -> Surroundings:
        """Those of this process, with these variables where they are set."""
        names = (bit_exact.VARIABLE, *variables)
        return cls(variables={name: os.environ[name] for name in names if name in os.environ}, gpus=gpus)

    def enter(self) -> None:
        """Makes this process like the driver's. InputError where it cannot be."""
        if self.version != (here := version("bough")):
            raise InputError(f"it has Bough {here}, and the driver has {self.version}; install the same version")
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        os.environ.update(self.variables)
        os.environ["OMP_NUM_THREADS"] = "1"  # workers share the cores, and one thread rounds alike everywhere
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        if not self.gpus:
            hide_gpus()
        elif self.gpus < 1:
            import torch

            if torch.cuda.is_available():
                torch.cuda.set_per_process_memory_fraction(self.gpus)


def refusal(error: Exception) -> str:
    """Why a worker cannot start, such as a module that is not installed there or a GPU without memory."""
    return str(error) if isinstance(error, BoughError) else exception_line(error)


def hide_gpus() -> None:
    """This process and those that it starts see no GPU. Ray shows all of them to a process that has none."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt: its record and images, or an error in words."""

    record: Trajectory | None = None
    images: Images = field(default_factory=list)
    error: str = ""
    text: str = ""

    @classmethod
    def of_error(cls, error: BoughError) -> Outcome:
        kinds = (kind for kind, error_class in ERRORS.items() if isinstance(error, error_class))
        return cls(error=next(kinds), text=str(error))

    def result(self) -> tuple[Trajectory, Images]:
        """The record and the images. Raises the error if there was one."""
        if self.record is None:
            raise ERRORS[self.error](self.text)
        return self.record, self.images


class Worker:
    """Plays attempts, several at the same time, until it is closed."""

    def __init__(self, packed: bytes, surroundings: Surroundings | None = None) -> None:
        self._packed, self._surroundings = packed, surroundings
        self._spec: WorkerSpec | None = None
        self._agents: Agents | None = None

    async def start(self) -> str | None:
        """Gets ready to play; returns why it cannot play here, None if it can."""
        try:
            if self._surroundings is not None:
                self._surroundings.enter()
            self._spec = spec = pickle.loads(self._packed)  # noqa: S301  what the driver has packed
            if lacks := spec.environment_class.lacks():
                return str(lacks)
            self._agents = await spec.make_agents()
        except Exception as error:
            return refusal(error)
        return None

    async def play(self, attempt: Attempt, episode: str | None = None) -> Outcome:
        """Plays one attempt. Only what is a defect of the code raises."""
        assert self._spec is not None and self._agents is not None
        try:
            async with self._agents.playing(attempt) as agent:
                runner = LocalRunner.of(self._spec.environment_class, agent, self._spec.limits)
                return Outcome(*await runner.play(attempt, episode=episode))
        except BoughError as error:
            return Outcome.of_error(error)

    async def renew(self, name: str, weights: Any) -> None:
        """Plays with these weights from now on; records call them `name`."""
        assert self._agents is not None
        await self._agents.renew(name, weights)

    async def close(self) -> None:
        """Releases the agent, and what the environment's episodes share."""
        if self._agents is not None:
            await self._agents.close()
        if self._spec is not None:
            await shut_down(self._spec.environment_class)
