"""Tasksets of verifiers: `verifiers:gsm8k-v1`.

A taskset has tasks and rewards. A harness, a program of its own, plays a task: verifiers starts
it, passes its requests to the episode's address, where they are answered and recorded, and
computes the rewards. So a taskset takes the place of a user's own agent function.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import verifiers.v1 as vf
from pydantic import Field, JsonValue, ValidationError
from verifiers.v1.utils.loaders import taskset_class

from bough.config.base import Config
from bough.data.base import row_error
from bough.environments.base import Environment, EnvironmentFailedError
from bough.environments.registry import OwnAgent, subclass
from bough.errors import InputError, describe_failure
from bough.event_loop import BackgroundLoop
from bough.files import text_digest
from bough.types import Task

# Tenths of all tasks, by their content. "all" is the whole taskset.
SPLITS = {"train": range(8), "seen": range(8, 9), "unseen": range(9, 10), "all": range(10)}
# Chat, and the tools of the task; verifiers' own default is `bash`, which runs commands.
HARNESS, OF_VERIFIERS = "null", "bash"
# Written as a name alone, these are a mapping with that name under this key.
NAMED = {"harness": "id", "runtime": "type"}
OURS = ("client", "model", "sampling", "retries")
# The endpoint asks for no key. A variable that is never set keeps the user's keys out of the requests.
NO_KEY = "BOUGH_VERIFIERS_NO_KEY"
# Stages whose time limit says nothing about the agent.
NOT_THE_AGENTS = ("setup_timeout", "finalize_timeout", "scoring_timeout")
# Names that a result gives a meaning of its own.
RESERVED = ("success", "reward", "outcome")
MAX_MESSAGE = 1000


class VerifiersTaskset(OwnAgent):
    """The tasks of a taskset, each played by a harness."""

    taskset_id: ClassVar[str] = ""
    parameters = ("task", "base_url", "model")
    # The event loop of all episodes: verifiers has locks that they share.
    episodes: ClassVar[BackgroundLoop | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()

    class Settings(Config):
        """The taskset, and the harness that plays it."""

        taskset: dict[str, JsonValue] = Field({}, description="settings of the taskset, such as {split: test}")
        agent: dict[str, JsonValue] = Field(
            {},
            description="settings of verifiers' agent, such as {harness: bash, runtime: docker}; default: the "
            "taskset's own harness or else null (chat and the task's tools), in a process on this machine",
        )
        success_reward: float = Field(1.0, description="an episode with at least this reward is a success")
        allow_local_code: bool = Field(
            False, description="allow a harness that runs the model's code on this machine, without isolation"
        )

    class Options(Settings):
        """The taskset, and the harness that plays it."""

    settings: ClassVar[Settings] = Settings()

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        """The taskset's tasks in an order that the seed fixes; an endless taskset keeps its own order."""
        if split not in SPLITS:
            raise InputError(f"split is {split!r}; choose one of {', '.join(SPLITS)}")
        taskset = vf.load_taskset(env_config(cls.taskset_id, options).taskset)
        found: Any = taskset
        if taskset.bounded:
            found = list(taskset)
            random.Random(seed).shuffle(found)  # noqa: S311  no secret
        for one in found:
            content = one.data.model_dump_json(exclude_defaults=True, exclude={"idx"})
            if int(text_digest(content, size=8), 16) % 10 in SPLITS[split]:
                data = one.data.model_dump(mode="json", exclude_defaults=True)
                yield Task(id=str(one.data.id or one.data.name or one.data.idx), data=data)

    @classmethod
    async def function(cls, task: Task, base_url: str, model: str) -> dict[str, Any] | None:
        """Plays a task; what verifiers says of it. Raises EnvironmentFailedError where harness or scoring failed."""
        with cls._making:
            if cls.episodes is None:
                cls.episodes = BackgroundLoop("bough-verifiers")
        work = play_episode(env_config(cls.taskset_id, cls.settings), task.data, base_url, model)
        episode = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, cls.episodes.loop))
        return read_episode(episode, cls.settings.success_reward)

    @classmethod
    async def shutdown(cls) -> None:
        episodes, cls.episodes = cls.episodes, None
        if episodes is not None:
            closing = threading.Thread(target=episodes.close, daemon=True)  # a harness may refuse to end
            closing.start()
            while closing.is_alive():
                await asyncio.sleep(0.01)
        await super().shutdown()


def adapt(name: str) -> type[Environment]:
    """The taskset that an installed package has under this name. Raises InputError where there is none."""
    try:
        about = vars(taskset_class(name)).get("__doc__")
    except (Exception, SystemExit) as error:  # it imports a module
        raise InputError(describe_failure(f"environment 'verifiers:{name}'", error)) from error
    about = inspect.cleandoc(about) if about else f"The taskset {name} of verifiers."
    return subclass(VerifiersTaskset, about, name=f"verifiers:{name}", taskset_id=name)


def env_config(taskset_id: str, settings: VerifiersTaskset.Settings) -> Any:
    """verifiers' configuration. Raises InputError where the options are wrong or cannot be combined."""
    where = f"environment 'verifiers:{taskset_id}'"
    if _names_code(settings.taskset):
        raise InputError(f"{where}: fn in --options taskset names code; use --rewards for rewards of your own")
    if given := [name for name in OURS if name in settings.agent]:
        raise InputError(f"{where}: --options agent cannot set {given[0]}, which is set by the run")
    fields = vf.env_config_type(taskset_id).model_fields
    agents = {name: field.default for name, field in fields.items() if isinstance(field.default, vf.AgentConfig)}
    if len(agents) != 1:
        raise InputError(f"{where} has {len(agents)} agents ({', '.join(agents)}); only one can be played")
    [(seat, declared)] = agents.items()
    agent: dict[str, Any] = {"runtime": "subprocess", **settings.agent}
    if declared.harness is None:
        of_taskset = vf.default_harness_id(taskset_id)
        agent.setdefault("harness", HARNESS if of_taskset == OF_VERIFIERS else of_taskset)
    for name, key in NAMED.items():
        if isinstance(agent.get(name), str):
            agent[name] = {key: agent[name]}
    try:
        config = vf.resolve_env_config({"taskset": {**settings.taskset, "id": taskset_id}, seat: agent})
    except ValidationError as error:
        raise InputError(f"{where}: {row_error(error)}") from None
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # a harness that cannot be found
        raise InputError(f"{where}: {error}") from None
    if not isinstance(getattr(config, seat).runtime, vf.SubprocessConfig):
        return config
    need_uv()
    harness = vf.load_harness(config.agent_harnesses()[seat])
    needing = {"harness": harness.NEEDS_CONTAINER, "tasks": vf.task_type(config.taskset.id).NEEDS_CONTAINER}
    if any(needing.values()):
        what = next(name for name, needs in needing.items() if needs)
        raise InputError(f"{where}: its {what} need a container; give --options 'agent={{runtime: docker}}'")
    if harness.EXECUTES_CODE and not settings.allow_local_code:
        raise InputError(
            f"{where}: the harness {harness.config.id} would run the model's code on this machine; give --options "
            "'agent={runtime: docker}', or allow_local_code=true if you accept that"
        )
    return config


def need_uv() -> None:
    """Puts uv on the path. Without it verifiers would fetch an installer and run it."""
    if shutil.which("uv") is not None:
        return
    try:
        from uv import find_uv_bin

        folder = Path(find_uv_bin()).parent
    except (ImportError, FileNotFoundError):
        raise InputError("harnesses of verifiers need the program uv; run: pip install uv") from None
    os.environ["PATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PATH")]))


def _names_code(value: Any) -> bool:
    """Whether a function to import is named somewhere in it: options may come from a file."""
    if isinstance(value, Mapping):
        return "fn" in value or any(map(_names_code, value.values()))
    return isinstance(value, list) and any(map(_names_code, value))


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


def read_episode(episode: Any, success_reward: float) -> dict[str, Any] | None:
    """The result of an episode, with each reward and metric; None where the taskset has no rewards.

    Raises EnvironmentFailedError where the harness, a tool or the scoring failed.
    """
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        # The end of a program's output says why it failed.
        said = [f"{error.type}: {error.message[-MAX_MESSAGE:].strip()}" for error in errors]
        raise EnvironmentFailedError(said[0] if said else "it did not finish and gave no reason")
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
