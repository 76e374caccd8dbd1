"""Tasksets of verifiers: `verifiers:gsm8k-v1`.

A taskset has tasks and rewards. A harness, a program of its own, plays a task: verifiers starts
it, passes its requests to the episode's address, where they are answered and recorded, and
computes the rewards. So a taskset takes the place of a user's own agent function.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

from bough.environments.adapters.verifiers_config import (
    VerifiersSettings,
    default_harness,
    env_config,
    load_taskset,
    need_uv,
    taskset_class,
)
from bough.environments.adapters.verifiers_episode import EpisodeLoop, play_episode, prepare_harness, read_episode
from bough.environments.base import Environment
from bough.environments.registry import OwnAgent
from bough.errors import InputError
from bough.files import text_digest
from bough.types import Task

# Tenths of all tasks, by their content. "all" is the whole taskset.
SPLITS = {"train": range(8), "seen": range(8, 9), "unseen": range(9, 10), "all": range(10)}


class VerifiersTaskset(OwnAgent):
    """The tasks of a taskset, each played by a harness."""

    taskset_id: ClassVar[str] = ""
    parameters = ("task", "base_url", "model")
    episodes: ClassVar[EpisodeLoop | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()

    class Settings(VerifiersSettings):
        """The taskset, and the harness that plays it."""

    class Options(Settings):
        """The taskset, and the harness that plays it."""

    settings: ClassVar[Settings] = Settings()

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        """The taskset's tasks in an order that the seed fixes; an endless taskset keeps its own order."""
        if split not in SPLITS:
            raise InputError(f"split is {split!r}; choose one of {', '.join(SPLITS)}")
        config = env_config(cls.taskset_id, options)
        taskset = load_taskset(config)
        found: Any = taskset
        if taskset.bounded:
            found = list(taskset)
            random.Random(seed).shuffle(found)  # noqa: S311  no secret
        for one in found:
            if _tenth(one.data) in SPLITS[split]:
                data = one.data.model_dump(mode="json", exclude_defaults=True)
                yield Task(id=str(one.data.id or one.data.name or one.data.idx), data=data)

    @classmethod
    async def function(cls, task: Task, base_url: str, model: str) -> dict[str, Any] | None:
        """Plays a task; what verifiers says of it. Raises EnvironmentFailedError where harness or scoring failed."""
        with cls._making:
            if cls.episodes is None:
                cls.episodes = EpisodeLoop()
        config = env_config(cls.taskset_id, cls.settings)
        episode = await cls.episodes.run(play_episode(config, task.data, base_url, model))
        return read_episode(episode, cls.settings.success_reward)

    @classmethod
    def setup(cls) -> Iterator[str]:
        """Installs what the harness needs, for `bough env setup`."""
        need_uv()
        harness = default_harness(cls.taskset_id)
        asyncio.run(prepare_harness(harness))
        yield f"The harness {harness} can be run on this machine."

    @classmethod
    async def shutdown(cls) -> None:
        episodes, cls.episodes = cls.episodes, None
        if episodes is not None:
            await episodes.close()
        await super().shutdown()


def adapt(name: str) -> type[Environment]:
    """The taskset that an installed package has under this name."""
    about = vars(taskset_class(name)).get("__doc__")
    more = {
        "__module__": __name__,
        "__doc__": inspect.cleandoc(about) if about else f"The taskset {name} of verifiers.",
        "name": f"verifiers:{name}",
        "taskset_id": name,
    }
    return type("VerifiersTaskset", (VerifiersTaskset,), more)


def _tenth(data: Any) -> int:
    content = data.model_dump_json(exclude_defaults=True, exclude={"idx"})
    return int(text_digest(content, size=8), 16) % 10
