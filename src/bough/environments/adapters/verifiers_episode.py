"""One episode of verifiers: its harness against an address, and what the rewards say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import verifiers.v1 as vf
from verifiers.v1.runtimes import provision_runtime

from bough.environments.base import EnvironmentFailedError

T = TypeVar("T")
# The endpoint asks for no key. A variable that is never set keeps the user's keys out of the requests.
NO_KEY = "BOUGH_VERIFIERS_NO_KEY"
# Stages whose time limit says nothing about the agent.
NOT_THE_AGENTS = ("setup_timeout", "finalize_timeout", "scoring_timeout")
# Names that a result gives a meaning of its own.
RESERVED = ("success", "reward", "outcome")
MAX_MESSAGE = 1000
# Time that cancelled episodes have to end their processes.
GRACE_S = 10.0


class EpisodeLoop:
    """A thread with the event loop of all episodes: verifiers has locks that they share."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._episodes: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bough-verifiers", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises on that loop; cancelled with its caller."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop))

    async def close(self) -> None:
        """Cancels what is still running, waits for it, and ends the thread."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end_episodes(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, GRACE_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._episodes.add(task)
        try:
            return await work
        finally:
            self._episodes.discard(task)

    async def _end_episodes(self) -> None:
        if left := set(self._episodes):
            for task in left:
                if not task.cancelling():  # a second time would interrupt how it ends its processes
                    task.cancel()
            await asyncio.wait(left, timeout=GRACE_S)


async def play_episode(config: Any, data: Mapping[str, Any], base_url: str, model: str) -> Any:
    """Plays a task with the harness of the configuration.

    Each episode has an environment of verifiers of its own, which closes its connections to
    `base_url` at the end.
    """
    environment = vf.load_environment(config)
    task_class = vf.task_type(config.taskset.id)
    task = task_class(task_class.data_type().model_validate(data), config.taskset.task)
    client = vf.EvalClientConfig(base_url=base_url, api_key_var=NO_KEY)
    async with environment.serving():
        return await environment.run_episode(task, vf.ModelContext(model=model, client=client))


async def prepare_harness(harness_id: str) -> None:
    """Installs what a harness needs in a process on this machine."""
    harness = vf.load_harness(vf.harness_config_type(harness_id).model_validate({"id": harness_id}))
    async with provision_runtime(vf.SubprocessConfig()) as runtime:
        await harness.setup(runtime)


def read_episode(episode: Any, success_reward: float) -> dict[str, Any] | None:
    """The result of an episode, with each reward and metric; None where the taskset has no rewards.

    Raises EnvironmentFailedError where the harness, a tool or the scoring failed.
    """
    if not episode.ok:
        raise EnvironmentFailedError(_failure(episode))
    if len(episode.traces) != 1:
        raise EnvironmentFailedError(f"it ran its agent {len(episode.traces)} times; only one run can be recorded")
    trace = episode.traces[0]
    if trace.stop_condition in NOT_THE_AGENTS:
        raise EnvironmentFailedError(f"it ended with {trace.stop_condition}")
    if unknown := [name for name, reward in trace.rewards.items() if reward is None]:
        raise EnvironmentFailedError(f"its reward {unknown[0]} was not computed")
    if not trace.rewards:
        return None
    numbers = {name: value for name, value in trace.metrics.items() if value is not None}
    numbers |= {name: reward.score for name, reward in trace.rewards.items()}
    named = {f"verifiers_{name}" if name in RESERVED else name: value for name, value in numbers.items()}
    return {**named, "reward": trace.reward, "success": bool(trace.reward >= success_reward)}


def _failure(episode: Any) -> str:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not errors:
        return "it did not finish and gave no reason"
    # The end of a program's output says why it failed.
    return f"{errors[0].type}: {errors[0].message[-MAX_MESSAGE:].strip()}"
