"""A user's own agent: a function that plays a task by itself, against an OpenAI-compatible address.

    def play(task, base_url): ...                  # or async def; by name: task, base_url, client, model, seed
        return reward                              # a number, True or False, a mapping, or None where it is not known

    def tasks(split, seed): ...                    # in the same module, or as play.tasks; or --task-file

There is no environment: the function holds the conversation, calls its tools and judges the
result. It takes the place of an environment, so that everything that plays tasks plays these too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from bough.config.environment import AGENT_PREFIX as PREFIX
from bough.digest import json_digest
from bough.environments.base import Environment, EnvironmentFailedError, NoTasksError, Observation, Tasks
from bough.errors import InputError
from bough.speech.reply import Reply
from bough.types import Task

# What an agent function may ask for, by the names of its parameters.
PARAMETERS = ("task", "base_url", "client", "model", "seed")


class OwnAgent(Environment):
    """The tasks of an agent function. `endpoint` is what serves it while tasks are played (`bough.rollouts`)."""

    shares_loop = True
    function: ClassVar[Callable[..., Any]]
    parameters: ClassVar[tuple[str, ...]]
    endpoint: ClassVar[Any] = None

    def start(self) -> Observation:
        raise EnvironmentFailedError(f"{self.name} is an agent: it plays by itself, there is no step to take")

    def step(self, reply: Reply) -> Observation:  # noqa: ARG002
        return self.start()

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Tasks:  # noqa: ARG003
        make = _tasks_of(cls.function)
        if make is None:
            raise NoTasksError(
                f"{cls.name} has no tasks: define a function tasks(split, seed) beside it, or give --task-file"
            )
        wanted = inspect.signature(make).parameters
        given = {name: value for name, value in {"split": split, "seed": seed}.items() if name in wanted}
        made = make(**given)
        if isinstance(made, AsyncIterator):
            return _as_tasks_async(made)
        return map(_as_task, made)

    @classmethod
    async def shutdown(cls) -> None:
        endpoint, cls.endpoint = cls.endpoint, None
        if endpoint is not None:
            await endpoint.close()


def own_agent(function: Any, name: str) -> type[OwnAgent]:
    """The class of an agent function. Raises InputError where it cannot be called as one."""
    if not callable(function) or inspect.isclass(function):
        raise InputError(f"--agent {name} is of type {type(function).__name__}; it must be a function")
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    required = {one.name for one in parameters if one.name in named and one.default is one.empty}
    if strangers := sorted(required - set(PARAMETERS)):
        raise InputError(
            f"--agent {name} needs {strangers[0]!r}, which it is not given; its parameters may be "
            f"{', '.join(PARAMETERS)}, others need defaults"
        )
    if not takes_all and not named & {"base_url", "client"}:
        raise InputError(f"--agent {name} takes neither base_url nor client, so it could not reach the model")
    wanted = tuple(one for one in PARAMETERS if one in named or (takes_all and one != "client"))
    body = {"name": f"{PREFIX}{name}", "function": staticmethod(function), "parameters": wanted}
    return type("OwnAgent", (OwnAgent,), {**body, "__module__": __name__, "__doc__": inspect.getdoc(function)})


def _tasks_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    own = getattr(function, "tasks", None)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    found = own if own is not None else getattr(module, "tasks", None)
    return found if callable(found) else None


def _as_task(given: Any) -> Task:
    """A task as it is; a mapping as a task with that data, named by it."""
    if isinstance(given, dict):
        return Task(id=json_digest(given, size=8), data=given)
    if not isinstance(given, Task):
        kind = type(given).__name__
        raise EnvironmentFailedError(
            f"tasks yielded a value of type {kind}; it must yield mappings or bough.Task objects"
        )
    return given


async def _as_tasks_async(made: AsyncIterator[Any]) -> AsyncIterator[Task]:
    async for one in made:
        yield _as_task(one)
