"""The contract: what an environment is, and what it answers.

    class GuessNumber(Environment):
        def __init__(self, task: Task) -> None: ...
        def start(self) -> Observation: ...
        def step(self, reply: str) -> Observation: ...

An environment is created for one task, exchanges messages and never sees tokens. The task
fixes the initial state: the same task gives the same start in any process, and the same
replies give the same observations. The environment also decides how an agent must write
and what it is told after an invalid reply: `step` answers any reply. Methods may be plain
functions or `async def`. Environments with tools: `bough.environments.tools`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from bough.config.base import Config
from bough.environments.rules import MistakeRules
from bough.errors import BoughError, RewardRangeError, describe_failure
from bough.speech.base import MalformedError
from bough.speech.reply import Reply
from bough.types import Message, Task

Tasks = Iterable[Task] | AsyncIterator[Task] | Awaitable[Iterable[Task]]


class _Nothing:
    """None for callers that await it: `await super().close()` works in an `async def`."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


NOTHING = _Nothing()


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What an environment returns: at the start, and in answer to each reply.

    `reward` is the reward of this step, None if only the end is scored; `progress` is the
    completed share of the task, 0 to 1. `terminated` means that the task itself is over,
    `truncated` that it was cut short. `action` is the action that was understood, `error`
    a short fixed word for an invalid reply ("malformed", "invalid_action"); invalid replies
    are counted. `stop` names a special way to end ("premature_success"). `images` are PNG
    files for people to look at, `info` is for programs; the agent sees neither. `state` names
    the environment's state (equal states, equal names), so that steps of several attempts from
    one state can be compared; without it the text of the observation is the name.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    reward: float | None = None
    progress: float | None = None
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    action: str | None = None
    error: str | None = None
    stop: str | None = None
    images: tuple[bytes, ...] = ()
    state: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def say(cls, content: str, *, hint: str | None = None, **more: Any) -> Self:
        """One user message; the episode continues. `hint` is shown only while it is the newest."""
        return cls(messages=(Message(role="user", content=content, hint=hint),), **more)

    @classmethod
    def begin(cls, system: str, content: str, *, hint: str | None = None, **more: Any) -> Self:
        """How an episode starts: the rules, then what the agent sees first."""
        rules = Message(role="system", content=system)
        return cls(messages=(rules, Message(role="user", content=content, hint=hint)), **more)

    @classmethod
    def end(cls, content: str = "", *, success: bool | None = None, **more: Any) -> Self:
        """The task is over."""
        messages = (Message(role="user", content=content),) if content else ()
        return cls(messages=messages, terminated=True, success=success, **more)

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def text(self) -> str:
        """What the agent reads, hints included."""
        return "\n\n".join(message.content + (message.hint or "") for message in self.messages)


class Environment(ABC):
    """One episode's environment. Only `__init__(task)`, `start` and `step` are required.

    `max_turns` is the default limit on replies per episode; the caller may set another.
    `reward_range` is the smallest and largest reward of one step, None if unknown: a
    reward outside it stops the run. `tools` are JSON schemas of the functions that the
    agent may call, offered for the whole episode.
    """

    name: ClassVar[str] = ""
    max_turns: ClassVar[int] = 50
    reward_range: ClassVar[tuple[float, float] | None] = None
    tools: tuple[dict[str, Any], ...] = ()
    # Set this if episodes share something bound to one event loop, such as a browser: their methods then run on the
    # caller's loop and must never block it. All other environments run in a thread of their own, one per episode.
    shares_loop: ClassVar[bool] = False
    # Time limit of a step; set by the caller.
    step_timeout_s: float = 60.0

    class Settings(Config):
        """How the environment runs, such as time limits. From the command line or Python, never from a task."""

    settings: ClassVar[Any] = Settings()

    class Options(Config):
        """Which tasks to make, and the settings. The fields that are not settings go into the tasks' data."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def start(self) -> Observation | str | Awaitable[Observation | str]:
        """The first observation, or its text alone. Called once, before any step."""

    @abstractmethod
    def step(self, reply: Reply) -> Observation | Awaitable[Observation]:
        """The result of the agent's reply: text, with its tool calls as `reply.tool_calls`.

        Must not raise because of what the reply says.
        """

    def timed_out(self) -> Observation | None:
        """How an episode ends in which a step does not return in time; None where that is the environment's failure.

        Called from another thread while `step` may still be running.
        """
        return None

    def close(self) -> Awaitable[None] | None:
        """Releases what this episode holds. May be called at any time, and twice."""
        return NOTHING

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Tasks:  # noqa: ARG003
        """A finite or endless series of tasks; the same arguments give the same tasks.

        `options` is an instance of the class's own `Options`.
        """
        raise NoTasksError(f"{cls.name or cls.__name__} makes no tasks of its own; give them with --task-file")

    @classmethod
    def mistake_rules(cls) -> MistakeRules:
        """What counts as a mistake here besides loops and invalid actions (`environments/rules.py`)."""
        return MistakeRules()

    @classmethod
    def lacks(cls) -> str | None:
        """What this machine lacks to play here, such as a browser; None if nothing. Asked on each node of a cluster."""
        return None

    @classmethod
    def shutdown(cls) -> Awaitable[None] | None:
        """Releases what all episodes share (a browser, a pool of processes)."""
        return NOTHING

    def say(self, action: str, thought: str = "") -> str | Awaitable[str]:  # noqa: ARG002
        """The reply that takes `action`, in the form that `step` understands."""
        return action

    def action_in(self, reply: Reply) -> str | Awaitable[str | None] | None:
        """The action that `step` would take from a reply, None if there is none: replies are compared by it.

        By default the tool calls of the reply, or all that it says besides its reasoning.
        """
        try:
            return reply.parsed.action
        except MalformedError:
            return None

    def accepts(self, reply: Reply) -> bool | Awaitable[bool]:  # noqa: ARG002
        """Whether a reply is as good here as the expert's, though its action is another; corrections leave it alone."""
        return False

    def expert(self) -> str | Awaitable[str | None] | None:
        """The reply of an agent that solves the task, at this point of the episode; None if there is no expert."""
        return NOTHING

    def choices(self) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Actions that are possible now, for the random agent; empty if unknown."""
        return ()


def check_reward(environment: Environment, observation: Observation) -> None:
    """Raises RewardRangeError if a step's reward is outside the range that its environment declares."""
    declared, reward = environment.reward_range, observation.reward
    if declared is not None and reward is not None and not declared[0] <= reward <= declared[1]:
        who = environment.name or type(environment).__name__
        raise RewardRangeError(f"the environment {who}", environment.task.id, reward, declared)


class NoTasksError(BoughError):
    """The environment has no tasks of its own."""

    exit_code = 2


class EnvironmentFailedError(BoughError):
    """The environment failed (a browser died, its code raised): not the agent's fault.

    The episode is played again from the start, and the failure is counted.
    """


class TooSlowError(EnvironmentFailedError):
    """A call of the environment did not return in time."""


def blame(what: str, error: BaseException) -> EnvironmentFailedError:
    """The EnvironmentFailedError of whatever `what` raised, with the place in the author's code."""
    return EnvironmentFailedError(describe_failure(what, error))
