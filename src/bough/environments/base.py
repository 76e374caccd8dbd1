"""The contract: what an environment is, and what it answers.

    class GuessNumber(Environment):
        def __init__(self, task: Task) -> None: ...
        async def start(self) -> Observation: ...
        async def step(self, reply: str) -> Observation: ...

An environment is made fresh for a task, speaks messages and never sees tokens. The task
fixes the initial state: the same task gives the same start in any process, and the same
replies give the same observations. How an agent must write, how many turns it has and
what it is told when it writes nonsense are the environment's business too: whatever the
reply is, `step` answers it.
"""

from __future__ import annotations

import sysconfig
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from bough.config.base import Config
from bough.environments.rules import MistakeRules
from bough.errors import BoughError, RewardRangeError
from bough.types import Message, Task

# Where code lies that is not the author's own: ours, Python's and installed packages'.
INSTALLED = (str(Path(__file__).parents[1]), *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What an environment says: at the start, and in answer to each reply.

    `reward` is this step's, None where the world scores only the end; `progress` is how
    much of the task is done, 0 to 1. `terminated` means that the task itself is over,
    `truncated` that it was cut short. `action` is what was understood as the agent's
    action, `error` a short fixed word for a reply that could not be acted on
    ("malformed", "invalid_action"), which is counted. `stop` names a way to end that
    deserves a name of its own ("premature_success"). `images` are PNG files for people
    to look at, `info` is for programs; the agent sees neither.
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
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def say(cls, content: str, *, hint: str | None = None, **more: Any) -> Self:
        """One user message, and the episode goes on. `hint` is shown only while it is the newest."""
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
    """One episode's world. Only `__init__(task)`, `start` and `step` must be written.

    `max_turns` is how many replies an agent has in this world by custom; whoever plays
    the episode counts, and may set another limit. `reward_range` is the least and the
    most that one step can be rewarded with, None where it is not known: a reward outside
    it stops the run.
    """

    name: ClassVar[str] = ""
    max_turns: ClassVar[int] = 50
    reward_range: ClassVar[tuple[float, float] | None] = None
    # Whether episodes share what lives on one event loop, such as a browser. If so, their methods run on the
    # caller's loop and must never block it; all others run in a thread of their own, each episode in one.
    shares_loop: ClassVar[bool] = False
    # How long a step may take. Whoever plays the episode sets it.
    step_timeout_s: float = 60.0

    class Settings(Config):
        """How the environment runs, such as time-outs. From the command line or Python, never from a task."""

    settings: ClassVar[Any] = Settings()

    class Options(Config):
        """What tasks can be asked for, settings included. Every field but those ends up in the tasks' data."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    async def start(self) -> Observation:
        """The first thing the agent sees. Called once, before any step."""

    @abstractmethod
    async def step(self, reply: str) -> Observation:
        """What the agent's reply leads to. Never raises because of what the reply says."""

    async def close(self) -> None:
        """Lets go of what this episode holds. May be called at any moment, and twice."""
        return

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:  # noqa: ARG003
        """Tasks without end, or as many as there are; the same arguments give the same tasks.

        `options` is of the class's own `Options`.
        """
        raise NoTasksError(f"{cls.__name__} makes no tasks of its own; give them with --task-file")

    @classmethod
    def mistake_rules(cls) -> MistakeRules:
        """What counts as a mistake here besides loops and invalid actions (`environments/rules.py`)."""
        return MistakeRules()

    @classmethod
    async def shutdown(cls) -> None:
        """Lets go of what all episodes share (a browser, a pool of processes)."""
        return

    def say(self, action: str, thought: str = "") -> str:  # noqa: ARG002
        """The reply that takes `action`, in the form that `step` understands."""
        return action

    async def expert(self) -> str | None:
        """The reply of somebody who knows how, here and now; None where nobody does."""
        return None

    def choices(self) -> Sequence[str]:
        """Actions that can be taken now, for an agent that plays at random; empty where they are not known."""
        return ()


def check_reward(environment: Environment, observation: Observation) -> None:
    """Raises RewardRangeError where a step's reward lies outside what its environment declares."""
    declared, reward = environment.reward_range, observation.reward
    if declared is not None and reward is not None and not declared[0] <= reward <= declared[1]:
        who = environment.name or type(environment).__name__
        raise RewardRangeError(f"the environment {who}", environment.task.id, reward, declared)


class NoTasksError(BoughError):
    """The environment has no tasks of its own."""

    exit_code = 2


class WorldError(BoughError):
    """The world broke (a browser died, a sandbox did not start): no fault of the agent's.

    Whoever plays the episode plays it again from its start, and counts it.
    """


def blame(what: str, error: BaseException) -> WorldError:
    """The WorldError of whatever `what` raised, with the place in the author's code."""
    place = _place(error)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return WorldError(f"{what} raised {said}{f' ({place})' if place else ''}")


def _place(error: BaseException) -> str:
    """File and line of the innermost frame that is neither ours, Python's nor an installed package's."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [(file, line) for file, line in frames if not file.startswith((*INSTALLED, "<"))]
    return f"{Path(theirs[-1][0]).name}:{theirs[-1][1]}" if theirs else ""
