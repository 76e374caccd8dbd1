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

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import JsonValue, ValidationError
from pydantic_core import from_json, to_json

from bough.chat.tool_calls import MalformedError, Reply, reply_text
from bough.config.base import Config, listed
from bough.config.groups import make_options
from bough.data.base import row_error
from bough.data.lines import files, lines
from bough.data.reader import parse
from bough.errors import BoughError, InputError, RewardRangeError, RowError, describe_failure, short_repr
from bough.files import json_digest, text_digest
from bough.ledger import is_finite, plural
from bough.types import Message, Task, Trajectory, Turn

log = logging.getLogger(__name__)


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
    # Set this if what a step does follows from the environment's state and the reply alone. Attempts at a task are then
    # played once while they say the same, and `copy` is called where they part.
    shares_steps: ClassVar[bool] = False
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

    def copy(self) -> Self:
        """A second environment in the same state, which changes apart from this one. Needed if `shares_steps`."""
        return deepcopy(self)

    def close(self) -> Awaitable[None] | None:
        """Releases what this episode holds. May be called at any time, and twice."""
        return NOTHING

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterable[Task]:  # noqa: ARG003
        """A finite or endless series of tasks; the same arguments give the same tasks.

        `options` is an instance of the class's own `Options`.
        """
        raise NoTasksError(f"{cls.name or cls.__name__} makes no tasks of its own; give them with --task-file")

    @classmethod
    def mistake_rules(cls) -> MistakeRules:
        """What counts as a mistake here besides loops and invalid actions (`MistakeRules`)."""
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


# All text of one observation, in characters. The longest pages and tool outputs are a hundredth of it.
MAX_TEXT = 10_000_000
_TEXT: tuple[tuple[type, ...], str] = (str, type(None)), "text or None"
_FLAG: tuple[tuple[type, ...], str] = (bool,), "True or False"
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "messages": ((tuple, list), "a tuple of messages"),
    "tools": ((tuple, list), "a tuple of JSON objects"),
    "terminated": _FLAG,
    "truncated": _FLAG,
    "success": ((bool, type(None)), "True, False or None"),
    "action": _TEXT,
    "error": _TEXT,
    "stop": _TEXT,
    "images": ((tuple, list), "a tuple of PNG files as bytes"),
    "state": _TEXT,
}
ITEMS: dict[str, type] = {"messages": Message, "tools": Mapping, "images": bytes}


def check_observation(what: str, given: Any, environment: Environment) -> Observation:
    """The observation that `what` returned, if it can be shown, counted and written down.

    Raises EnvironmentFailedError saying what is wrong, RewardRangeError for a reward outside the declared range.
    """
    if not isinstance(given, Observation):
        raise EnvironmentFailedError(f"{what} returned {short_repr(given)}; it must return an Observation")
    for name, (kinds, allowed) in KINDS.items():
        value: Any = getattr(given, name)
        kind, right = ITEMS.get(name), isinstance(value, kinds)
        if not right or (kind and value and not all(isinstance(item, kind) for item in value)):
            raise EnvironmentFailedError(f"{what} gave the {name} {short_repr(value)}; it must be {allowed}")
    for name in ("reward", "progress"):
        value = getattr(given, name)
        if not (value is None or isinstance(value, bool) or is_finite(value)):
            shown = short_repr(value)
            raise EnvironmentFailedError(f"{what} gave the {name} {shown}; it must be a finite number or None")
    said = [text for message in given.messages for text in (message.content, message.hint, message.reasoning)]
    texts = [text for text in (*said, given.action, given.error, given.stop, given.state) if text]
    size = sum(map(len, texts))
    if given.tools:  # part of every prompt and of the record, which has them deeper than they are here
        try:
            tools = to_json({"record": [{"tools": given.tools}]}, fallback=dict)
            from_json(tools, allow_inf_nan=False)
        except ValueError as error:
            raise EnvironmentFailedError(f"{what} gave tools that cannot be kept as JSON: {error!s:.200}") from None
        size = max(size, len(tools))
    if size > MAX_TEXT:
        raise EnvironmentFailedError(f"{what} returned {size:,} characters; at most {MAX_TEXT:,} are allowed")
    for text in texts:
        check_unicode(what, text)
    declared, reward = environment.reward_range, given.reward
    if declared is not None and reward is not None and not declared[0] <= reward <= declared[1]:
        who = environment.name or type(environment).__name__
        raise RewardRangeError(f"the environment {who}", environment.task.id, reward, declared)
    return given


def check_unicode(what: str, text: str) -> None:
    """Raises EnvironmentFailedError for a text that can be written to no file."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EnvironmentFailedError(
            f"{what} returned text with half a surrogate pair at character {error.start + 1}; it must be valid Unicode"
        ) from None


# Whether turn `at` of a trajectory is a mistake.
Rule = Callable[[Trajectory, int], bool]


class MistakeRules:
    """What only one environment can tell about a turn, from its own texts; used for its episodes only.

    Loops and invalid actions are found without knowing any text (`mistakes.py`). The defaults know none: only
    replies marked as errors had no effect. An environment returns rules of its own from `mistake_rules`:

        class ShopRules(MistakeRules):
            def claims_success(self, turn: Turn) -> bool:
                return action_of(turn) == "checkout"
    """

    class Options(Config):
        """Settings of the rules, given with `--rule-options`."""

    def without_effect(self, turn: Turn) -> bool:
        """Whether the turn left the environment as it was. A malformed call may have been carried out all the same."""
        carried_out = turn.error == "malformed" and any(message.role == "tool" for message in turn.observation)
        return turn.error is not None and not carried_out

    def claims_success(self, turn: Turn) -> bool:  # noqa: ARG002
        """Whether the turn says that the task is done."""
        return False

    def own(self) -> Mapping[str, Rule]:
        """Further rules by the reason they give, the most telling first."""
        return {}

    def learn(self, trajectories: Iterable[Trajectory], options: Any) -> MistakeRules:  # noqa: ARG002
        """The rules adapted to recorded episodes. `options` is of the class's own `Options`."""
        return self


def action_of(turn: Turn) -> str:
    """What was done in a turn: its action, or the whole reply where no action was recognised."""
    return turn.action if turn.action is not None else reply_text(turn.reply)


# Which tasks: the environment's own, or those of a file.

# After this many repeated tasks in a row, there are taken to be no more tasks.
MAX_REPEATED = 10_000


def configured(environment_class: type[Environment], options: Mapping[str, JsonValue]) -> type[Environment]:
    """The environment with those `options` that are its settings. Tasks may come from files and cannot set any."""
    values = {name: value for name, value in options.items() if name in environment_class.Settings.model_fields}
    if not values:
        return environment_class
    more = {
        "settings": _options(environment_class, environment_class.Settings, values),
        "__module__": environment_class.__module__,
        "__doc__": environment_class.__doc__,
    }
    return type(environment_class.__name__, (environment_class,), more)


def _options(
    environment_class: type[Environment], options_class: type[Config], values: Mapping[str, JsonValue]
) -> Config:
    try:
        return make_options(options_class, values)
    except InputError as error:
        raise listed(f"--options of {environment_class.name}", error.problems) from error


def tasks_of(
    environment_class: type[Environment],
    *,
    options: Mapping[str, JsonValue],
    split: str = "train",
    task_file: Path | None = None,
    seed: int = 0,
) -> Iterator[Task]:
    """The requested tasks, each with a unique id and the name of its environment."""
    if task_file is None:
        made = _made(environment_class, _options(environment_class, environment_class.Options, options), split, seed)
    else:
        if wrong := [name for name in options if name not in environment_class.Settings.model_fields]:
            raise InputError(
                f"--options {wrong[0]} cannot be combined with --task-file: the tasks are those of {task_file}"
            )
        made = read_tasks(task_file, environment_class.name)
    for task in _distinct(made, environment_class.name if task_file is None else str(task_file)):
        yield task if task.environment else task.model_copy(update={"environment": environment_class.name})


def _made(environment_class: type[Environment], options: Config, split: str, seed: int) -> Iterator[Task]:
    """The environment's own tasks. Any exception in its code is an EnvironmentFailedError."""
    try:
        for task in environment_class.tasks(options, split=split, seed=seed):
            if not isinstance(task, Task):
                raise EnvironmentFailedError(
                    f"tasks yielded a value of type {type(task).__name__}; it must yield bough.Task objects"
                )
            to_json(task)  # Python accepts half a surrogate pair as text, a file does not
            yield task
    except BoughError:
        raise
    except (Exception, SystemExit) as error:
        raise blame("tasks", error) from error


def _distinct(tasks: Iterable[Task], source: str) -> Iterator[Task]:
    """The tasks without those that repeat an earlier one. A different task with the same id gets a number: `id-2`."""
    seen: dict[str, str] = {}
    repeated, in_a_row = 0, 0
    try:
        for task in tasks:
            id, number, content = task.id, 1, digest(task)
            while seen.get(id, content) != content:
                number += 1
                id = f"{task.id}-{number}"
            if id not in seen:
                seen[id], in_a_row = content, 0
                yield task if id == task.id else task.model_copy(update={"id": id})
                continue
            repeated, in_a_row = repeated + 1, in_a_row + 1
            if in_a_row >= MAX_REPEATED:  # an endless generator may have no other tasks
                return
    finally:
        if repeated:
            count = plural(repeated, "task repeats an earlier one and is", "tasks repeat an earlier one and are")
            log.warning("%s: %s skipped", source, count)


def digest(task: Task) -> str:
    """A digest of everything that fixes the task's start; unchanged after writing and reading the task."""
    content = {"environment": task.environment, "seed": task.seed, "data": task.data}
    plain = json.dumps(json.loads(to_json(content)), sort_keys=True)
    return text_digest(plain, size=8)


def identity(task: Task, *, by_content: bool = False) -> str:
    """What two tasks have in common that are the same, whichever split or file they come from.

    Tasks of one family are the same. An environment's ids may fix the start of its tasks; the ids of a file
    are its author's names, and with `by_content` they matter only where a task has nothing else.
    """
    family = task_family(task)
    if family is not None:
        return f"family {family}"
    content = digest(task.model_copy(update={"environment": None}))
    return content if by_content and (task.data or task.seed is not None) else f"{task.id} {content}"


def is_for_training(task: Task, *, by_content: bool = False) -> bool:
    """Whether a task is for training, where the same tasks serve training and selection: about half of them are.

    A digest of its family, its id or (`by_content`) its content decides, not the order, a seed or other tasks:
    no task, family or content is on both sides.
    """
    named = identity(task, by_content=by_content) if by_content or task_family(task) is not None else task.id
    return int(text_digest(named, size=8), 16) % 2 == 0


def task_family(task: Task) -> str | None:
    """The family of the task, where its data name one: tasks that vary one scenario."""
    named = task.data.get("family")
    return str(named) if isinstance(named, str | int) and not isinstance(named, bool) else None


def first_tasks(tasks: Iterator[Task], count: int) -> list[Task]:
    """The first `count` tasks, or as many as there are. No task at all is an InputError."""
    chosen = list(islice(tasks, count))
    if not chosen:
        raise InputError("no task matches these settings")
    return chosen


# Tasks from a JSON Lines file.
# A row is a task as it stands in a trajectory (`{"id": …, "seed": …, "data": {…}}`), or any object: then it is the
# task's data itself, and the task is named by its content.


def read_tasks(path: Path, environment: str) -> Iterator[Task]:
    """The tasks of a file, or of the shards of a folder, in order. Bad rows are an InputError with their places."""
    problems: list[str] = []
    for file in files(path):
        try:
            for number, content in lines(file):
                if isinstance(content, bytes) and not content.strip():
                    continue
                try:
                    row = parse(content)
                    if not (isinstance(row.get("data"), dict) and isinstance(row.get("id"), str)):
                        row = {"id": str(row.get("id") or json_digest(row, size=6)), "data": row}
                    task = Task.model_validate({**row, "environment": environment})
                except (RowError, ValidationError) as error:
                    why = row_error(error) if isinstance(error, ValidationError) else error
                    problems.append(f"{file}:{number}: {why}")
                if not problems:
                    yield task
                elif len(problems) >= 10:
                    break
        except RowError as error:
            problems.append(f"{file}: {error}")
    if problems:
        raise listed(str(path), problems)
