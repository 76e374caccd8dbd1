"""Plays attempts on the workers of a cluster, whatever happens to the workers.

What a lost worker was playing is played elsewhere, without a trace in the record. An attempt
that ends every worker it is given to is lost after a few of them, the last ones having
played nothing else.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bough.cluster.connection import connected, nodes
from bough.cluster.packing import pack
from bough.cluster.plan import make_plan
from bough.cluster.pool import WorkerPool
from bough.cluster.remote_worker import Place, WorkerLostError
from bough.cluster.worker import ConfiguredAgent, Outcome, Surroundings, Worker, WorkerSpec
from bough.config.cluster import ClusterConfig
from bough.config.rollouts import AgentConfig, CollectConfig
from bough.environments.base import Environment, EnvironmentFailedError
from bough.errors import InputError
from bough.rollouts.agents import ExpertAgent, RandomAgent
from bough.rollouts.attempt import Attempt
from bough.rollouts.runner import Images
from bough.terminal import console
from bough.types import Trajectory

# An attempt that was in flight on this many lost workers in a row is played alone from then on …
SUSPICIOUS = 2
# … and is lost after it was alone on this many lost workers.
DEADLY = 3
# Calls of a worker beside episodes: new weights, the end.
SPARE_CALLS = 8


class ClusterRunner:
    """A runner on the workers of a pool."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._deadly: dict[str, str] = {}  # reasons by attempt

    @property
    def worker_losses(self) -> int:
        """Workers that were lost while they were ready to play."""
        return self._pool.losses

    @property
    def places(self) -> list[Place]:
        """Where workers are ready to play now."""
        return [worker.place for worker in self._pool.dispatcher.workers]

    async def renew(self, name: str, weights: Any) -> None:
        """All workers play with these weights from now on; records call them `name`."""
        await self._pool.renew(name, weights)

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        dispatcher = self._pool.dispatcher
        num_lost = num_lost_alone = 0
        while attempt.id not in self._deadly:
            alone = num_lost >= SUSPICIOUS
            worker = await dispatcher.take(alone=alone)
            begun = time.monotonic()
            try:
                outcome: Outcome = await worker.remote.call("play", attempt, episode)
                worker.note(time.monotonic() - begun)
            except WorkerLostError as error:
                self._pool.lose(worker, error)
                num_lost, num_lost_alone = num_lost + 1, num_lost_alone + alone
                if num_lost_alone >= DEADLY:
                    why = f"{num_lost} workers in a row died while they played it, the last {DEADLY} only it"
                    self._deadly[attempt.id] = f"{why} ({error})"
            else:
                return outcome.result()
            finally:
                dispatcher.give_back(worker, alone=alone)
        raise EnvironmentFailedError(self._deadly[attempt.id])


@asynccontextmanager
async def cluster_runner(
    config: ClusterConfig,
    spec: WorkerSpec,
    *,
    concurrency: int,
    uses_gpu: bool,
    reserved_gpus: float = 0,
    reserved_cpus: float = 0,
    variables: tuple[str, ...] = (),
) -> AsyncIterator[ClusterRunner]:
    """A runner on the cluster of the settings, with as many workers as it has room for.

    `variables` are environment variables that workers need, such as that of an API key.
    """
    with connected(config):
        plan = make_plan(
            config, nodes(),
            concurrency=concurrency, uses_gpu=uses_gpu, reserved_gpus=reserved_gpus, reserved_cpus=reserved_cpus,
        )  # fmt: skip
        _say(str(plan))
        surroundings = Surroundings.here(variables=variables, gpus=plan.gpus_per_worker)
        pool = WorkerPool.on_ray(
            Worker, (pack(spec), surroundings), plan,
            max_calls=2 * plan.concurrency + SPARE_CALLS, timeout_s=config.timeout_s, say=_say,
        )  # fmt: skip
        pool.start()
        try:
            yield ClusterRunner(pool)
        finally:
            await pool.close()


@asynccontextmanager
async def collecting_runner(
    config: CollectConfig, environment_class: type[Environment]
) -> AsyncIterator[ClusterRunner]:
    """The runner of a collection, whose agent is the one that the settings name."""
    part = config.cluster.gpus_per_worker
    if config.agent.engine == "vllm" and config.agent.base_url is None and part is not None and part < 1:
        raise InputError("engine vllm takes the whole GPU: gpus_per_worker must be 1 or more")
    spec = WorkerSpec(environment_class, ConfiguredAgent(config.agent, config.sampling), config.limits)
    # A worker without an episode would load the model for nothing.
    concurrency = min(config.concurrency, config.tasks * config.attempts)
    async with cluster_runner(
        config.cluster, spec,
        concurrency=concurrency, uses_gpu=computes(config.agent), variables=(config.agent.key_variable,),
    ) as runner:  # fmt: skip
        yield runner


def computes(agent: AgentConfig) -> bool:
    """Whether whoever plays computes a model, instead of asking a server or none."""
    return agent.model not in (ExpertAgent.name, RandomAgent.name) and agent.base_url is None


def _say(line: str) -> None:
    console.err().print(console.printable(line), style="yellow", markup=False)
