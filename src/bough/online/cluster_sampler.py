"""The workers of a cluster as what samples from the policy in training: each version of the weights is sent to them."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import AsyncExitStack

from bough.cluster.runner import cluster_runner
from bough.cluster.weights import Publisher, trained_weights
from bough.cluster.worker import WorkerSpec
from bough.environments.base import Environment
from bough.errors import InputError
from bough.event_loop import BackgroundLoop
from bough.methods.distill import OnlineConfig
from bough.online.meter import Meter
from bough.online.worker_agents import PolicyAgents, VersionedAttempt
from bough.policy.policy import Policy
from bough.rollouts.attempt import Attempt
from bough.rollouts.runner import Images, Runner
from bough.types import Trajectory


class ClusterSampler:
    """Workers that play whole episodes.

    They have weights of their own, so with `max_staleness` above 0 they play while the policy
    trains. With 0, nothing is in flight between two versions.
    """

    def __init__(
        self, config: OnlineConfig, policy: Policy, environment_class: type[Environment], loop: BackgroundLoop
    ) -> None:
        if config.sampler.engine != "local":
            raise InputError(
                f"--engine {config.sampler.engine} does not go with --cluster: workers sample by themselves"
            )
        self.overlaps = config.rollouts.max_staleness > 0
        self._policy, self._loop = policy, loop
        # The version in training, those that a batch may still be learnt from, and one that is on its way.
        self.publisher = Publisher(keep=config.rollouts.max_staleness + 2)
        self._stack = AsyncExitStack()
        self._sent: Future[None] | None = None
        spec = WorkerSpec(environment_class, PolicyAgents.of(config, policy), config.limits)
        trains_on_gpu, learners = policy.device.type == "cuda", config.cluster.learners
        opened = cluster_runner(
            config.cluster,
            spec,
            concurrency=config.rollouts.concurrency,
            uses_gpu=True,
            # Each learner trains on a GPU. A user who sets the GPUs of a worker may share it.
            reserved_gpus=learners if trains_on_gpu and learners > 1 and config.cluster.gpus_per_worker is None else 0,
            # A single learner is the driver, which is not a process of Ray's.
            reserved_cpus=learners if learners > 1 else 0,
            driver_gpu=(policy.device.index or 0) if trains_on_gpu and learners == 1 else None,
        )
        self.runner = loop.run(self._stack.enter_async_context(opened))

    @property
    def worker_losses(self) -> int:
        return self.runner.worker_losses

    def renew(self, name: str) -> None:
        self.publisher.publish(name, trained_weights(self._policy))
        # It is not waited for: a worker that does not answer must not hold up the others. An
        # episode that arrives before the news waits for it on the worker.
        sending = self.runner.renew(name, self.publisher.offers)
        self._sent = asyncio.run_coroutine_threadsafe(sending, self._loop.loop)

    def pause(self) -> None:
        """The policy is not shared with the workers."""

    async def close(self) -> None:
        if self._sent is not None:
            self._sent.cancel()
        await self._stack.aclose()


class VersionedRunner:
    """Hands out attempts with the newest version at that time, and meters what comes back."""

    def __init__(self, runner: Runner, publisher: Publisher, meter: Meter) -> None:
        self._runner, self._publisher, self._meter = runner, publisher, meter

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        self._meter.request()
        num_tokens = 0
        try:
            versioned = VersionedAttempt.of(attempt, self._publisher.newest)
            record, images = await self._runner.play(versioned, episode=episode)
            num_tokens = int(str(record.info.get("completion_tokens", 0)))
            return record, images
        finally:
            self._meter.answer(num_tokens)
