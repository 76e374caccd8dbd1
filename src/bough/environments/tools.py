"""Tools from plain methods: each public method of a `ToolEnvironment` is a tool.

    class Shop(ToolEnvironment):
        def start(self) -> str:
            self.sold = 0
            return "Sell three apples."

        def sell(self, item: str, count: int = 1) -> str:
            \"\"\"Sells an item.

            Args:
                item: What to sell.
            \"\"\"
            self.sold += count if item == "apple" else 0
            return f"Sold {count} {item}."

        def success(self) -> bool:
            return self.sold == 3

A method whose name begins with an underscore is not a tool, nor is one of `Environment`'s own.
If any method is marked with `@tool`, only marked ones are tools. The agent gets a JSON schema
of each, made from its signature and docstring. Methods may be plain functions or `async def`;
one that waits for something should be `async def`, so that it can be stopped in time.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import logging
import re
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NotRequired, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, JsonValue, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import to_json
from typing_extensions import TypedDict

from bough.chat import tool_calls
from bough.chat.tool_calls import MalformedError, Reply
from bough.environments.base import MAX_TEXT, Environment, Observation
from bough.errors import (
    BoughError,
    InputError,
    describe_failure,
    exception_line,
    innermost_place,
    type_name,
)
from bough.types import Message, ToolCall

log = logging.getLogger(__name__)

# A tool's parameters: the JSON schema that agents read, and the check of a call's arguments.
# Both come from the method's signature and its docstring. Parameters may be described in an "Args:" section or with
# `Annotated[int, Field(description=…)]`.

ARGUMENTS = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$", re.MULTILINE)
SECTION = re.compile(r"^\s*(?:Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
DESCRIBED = re.compile(r"^[ \t]+(\w+)(?:[ \t]*\([^)]*\))?:[ \t]*(.*(?:\n[ \t]{8,}\S.*)*)", re.MULTILINE)

# What an agent reads of a wrong call: it may have written thousands of arguments with long names.
MAX_PROBLEMS = 10
MAX_PROBLEM = 200


@dataclass(frozen=True)
class ToolSchema:
    """One tool. `parameters` are its names in order; `adapter` checks the arguments of a call."""

    name: str
    description: str
    parameters: tuple[str, ...]
    adapter: TypeAdapter[dict[str, Any]]

    @classmethod
    def of(cls, owner: type, name: str) -> ToolSchema:
        """The schema of the method `name`. Raises TypeError saying what its author has to add."""
        method, where = getattr(owner, name), f"tool {owner.__name__}.{name}"
        text = inspect.getdoc(method)
        if not text:
            raise TypeError(
                f"{where} needs a docstring, which tells the agent what the tool does; "
                "if it is not a tool, begin its name with an underscore"
            )
        description, *rest = ARGUMENTS.split(text, maxsplit=1)
        arguments = SECTION.split(rest[0], maxsplit=1)[0] if rest else ""
        described = {found: " ".join(words.split()) for found, words in DESCRIBED.findall(arguments)}
        try:
            hints = get_type_hints(method, include_extras=True)
        except NameError as error:
            raise TypeError(f"{where}: {error}; its annotations must be defined at the top level of its file") from None
        fields: dict[str, Any] = {}
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"{where}: {parameter} cannot be filled in by an agent; give each parameter a name")
            if parameter.name not in hints:
                raise TypeError(f"{where}: parameter {parameter.name} needs a type annotation")
            required = parameter.default is parameter.empty
            more: dict[str, Any] = {}
            if not required:
                more["json_schema_extra"] = {"default": json.loads(to_json(parameter.default, fallback=str))}
            if parameter.name in described:
                more["description"] = described[parameter.name]
            field = Annotated[hints[parameter.name], Field(**more)] if more else hints[parameter.name]
            fields[parameter.name] = field if required else NotRequired[field]
        if unknown := [found for found in described if found not in fields]:
            raise TypeError(f"{where}: its docstring describes {unknown[0]!r}, which is not a parameter")
        typed_dict: Any = TypedDict  # mypy knows only fields that are written out
        checked = typed_dict("arguments", fields)
        checked.__pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
        try:
            adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(checked)
            adapter.json_schema()
        except (PydanticSchemaGenerationError, ValueError) as error:
            raise TypeError(f"{where}: its parameters cannot be described as JSON: {error}") from None
        return cls(name, SECTION.split(description, maxsplit=1)[0].strip(), tuple(fields), adapter)

    def to_json(self) -> dict[str, Any]:
        """The tool as chat templates and servers take it."""
        schema = _without_titles(self.adapter.json_schema())
        schema.pop("additionalProperties", None)
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def read(self, arguments: Mapping[str, JsonValue]) -> dict[str, Any]:
        """The arguments of a call as values for the method. Raises ValidationError."""
        # As JSON: a date or an enumeration is a string there, but "3" is not a number.
        return self.adapter.validate_json(to_json(arguments))

    def explain(self, error: ValidationError) -> str:
        """What is wrong with a call, for the agent."""
        found = error.errors(include_url=False, include_input=False)
        problems = [f"{'.'.join(map(str, one['loc'])):.{MAX_PROBLEM}}: {one['msg']:.{MAX_PROBLEM}}" for one in found]
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        said = "; ".join(problems[:MAX_PROBLEMS]) + more
        return f"{self.name}({', '.join(self.parameters)}) was called with invalid arguments. {said}."


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that repeat each name. A property may itself be called "title"."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_titles(one) for key, one in schema.items() if key != "title" or not isinstance(one, str)}


# A tool that raised: whose failure it is, and what the agent and the author read of it.
# Agents write odd but valid arguments, and tools raise on them: `int("five")`, a missing key, a division by 0. That
# is the agent's failure: it reads the error, and the episode continues. A network or a disk that fails is not; the
# episode is lost and played again. A time-out may have any cause: the agent reads it and continues, and the action
# counts as valid. A MemoryError is the agent's: `" " * n` raises it for a large n, and the agent must gain nothing by
# that.
# The same exception may be a bug of the author, which must not be hidden: it is logged with file and line the first
# time, counted in each trajectory, and `bough env check` reports it.

# Characters of an exception that the agent reads.
MAX_MESSAGE = 500
INFRASTRUCTURE = (OSError, ImportError, BoughError)
# Of these errors of the system the agent is the cause: it named the path, or the position in a file.
PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
PATH_ERRNOS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
# Where an observation's info has the facts of what was raised.
RAISED = "raised"
# Places that are in the log already. An agent whose programs define exceptions could make any number of them.
MAX_LOGGED = 100
_logged: set[str] = set()


@dataclass(frozen=True)
class Raised:
    """`place` says what raised where, without the message; `failure` has message and frames."""

    place: str
    failure: str


class ToolError(Exception):
    """Raised in a tool: the call cannot be carried out. The agent reads the message; the action counts as invalid."""

    word: str | None = "invalid_action"
    # What the author should know; nothing where the tool meant to refuse the call.
    facts: Sequence[Raised] = ()


class ToolTimeoutError(ToolError):
    """A tool took too long. Whose failure that is cannot be known, so it is not counted as the agent's."""

    word = None


class ToolRaisedError(ToolError):
    """A tool raised an exception that the agent's arguments caused."""

    word = "tool_raised"

    def __init__(self, what: str, error: BaseException) -> None:
        place = innermost_place(error)
        where = f"{what} raised {type_name(error)}" + (f" ({place})" if place else "")
        self.facts = [Raised(where, describe_failure(what, error))]
        super().__init__(f"{what} raised {exception_line(error, MAX_MESSAGE)}")
        if where not in _logged and len(_logged) < MAX_LOGGED:
            _logged.add(where)
            log.warning(
                "%s\n  The agent is told, and the episode continues. This is logged once.", self.facts[0].failure
            )


def raised_in(info: Any) -> list[Raised]:
    """What tools raised in the turn of an observation with this info."""
    found = info.get(RAISED) if isinstance(info, Mapping) else None
    return [one for one in found if isinstance(one, Raised)] if isinstance(found, list) else []


@contextmanager
def attributed(what: str) -> Iterator[None]:
    """Turns what the agent's arguments make `what` raise into a ToolRaisedError, a time-out into a ToolTimeoutError."""
    try:
        yield
    except (ToolError, BoughError):
        raise
    except (Exception, SystemExit) as error:  # argparse and programs that a tool runs exit
        if any(isinstance(one, TimeoutError) for one in _chain(error)):
            raise ToolTimeoutError(f"{what} raised {exception_line(error, MAX_MESSAGE)}") from error
        if isinstance(error, AbandonedError) or is_infrastructure(error):
            raise
        raise ToolRaisedError(what, error) from error


class AbandonedError(SystemExit):
    """Ends a thread that does not respond. Tools must not take it for an exit of theirs."""


def is_infrastructure(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, says nothing about the agent."""
    return any(
        isinstance(one, INFRASTRUCTURE)
        and not isinstance(one, PATH_ERRORS)
        and not (isinstance(one, OSError) and one.errno in PATH_ERRNOS)
        for one in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, those that it was raised from, and those that they are groups of.

    HTTP clients wrap the system's errors in their own.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            for one in current.exceptions:
                yield from _chain(one)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


# Of a name that is not a tool's: the agent may have written anything.
MAX_NAME = 80
# Characters of an error that are shown even where the results before it left no room.
MIN_ERROR = 200
# The share of a step's time that all calls of a reply have together; the rest is for answering.
SHARE = 0.8
NOT_IN_TAGS = f"\n(The call was not inside {tool_calls.OPEN}{tool_calls.CLOSE}. Write it there.)"


@dataclass
class _Turn:
    """The calls of one reply. Limited for all calls together: no agent makes its observation too long to be kept."""

    deadline: float
    room: int = MAX_TEXT // 2
    messages: list[Message] = field(default_factory=list)
    wrong: str | None = None
    raised: list[Raised] = field(default_factory=list)
    running: str | None = None


class ToolCallEnvironment(Environment):
    """An environment that is written as `start`, `tools` and `_use`, wherever its tools come from.

    The calls of a reply are run in order, and their results are returned as tool messages. A reply without a
    call goes to `answer`. `success()` may judge the state: the episode ends when it returns True, and a reply
    without a call ends it with whatever `success()` returns then.

    | what a tool does | what happens |
    |---|---|
    | refuses the call, or raises because of its arguments | the agent reads the error; the action is invalid |
    | takes too long, or raises TimeoutError | the agent reads that; the action counts as valid |
    | blocks its thread beyond the time limit of a step | the episode ends with stop `tool_timeout` and is kept |
    | fails for another reason (network, disk) | the episode is played again |
    """

    # Time limit of one call, where it is less than what a step allows.
    tool_timeout_s: ClassVar[float | None] = None
    _end: Observation | None = None
    _turn: _Turn | None = None

    @property
    def tool_names(self) -> Sequence[str]:
        return [tool["function"]["name"] for tool in self.tools]

    @abstractmethod
    def _use(self, call: ToolCall) -> Any:
        """The result of a call of a tool that exists, or an awaitable of it.

        Raises ToolError for a call that cannot be carried out.
        """

    def success(self) -> bool | Awaitable[bool]:
        """Whether the task is solved. Override it, or call `end` in a tool."""
        return False

    def end(self, *, success: bool | None = None, reward: float | None = None, **more: Any) -> None:
        """Ends the episode with this turn; `more` are further fields of its observation. Call it inside a tool."""
        self._end = Observation.end(success=success, reward=reward, **more)

    def answer(self, text: str) -> Observation | Awaitable[Observation]:  # noqa: ARG002
        """The result of a reply without a call: the end if `success` judges, otherwise an invalid reply."""
        if self._judges:
            return Observation.end()
        return Observation.say(f"{tool_calls.PROMPT}\nThe tools are {', '.join(self.tool_names)}.", error="malformed")

    async def step(self, reply: str) -> Observation:
        self._turn = None
        try:
            said = Reply.of(reply).parsed
        except MalformedError as error:
            return Observation.say(str(error), error="malformed")
        calls = said.calls or tool_calls.read_calls(said.action, self.tool_names)
        if not calls:
            return await self._judged(await self._answer(said.action))
        turn = self._turn = _Turn(time.monotonic() + SHARE * self.step_timeout_s)
        for call in calls:
            await self._run(call, turn)
            if self._end is not None:
                break
        if not said.calls:
            turn.wrong = turn.wrong or "malformed"
            turn.messages[-1] = turn.messages[-1].model_copy(
                update={"content": turn.messages[-1].content + NOT_IN_TAGS}
            )
        ended = self._end or Observation()
        info = {**ended.info, RAISED: turn.raised} if turn.raised else ended.info
        action = "\n".join(map(tool_calls.call_text, calls))
        seen = replace(ended, messages=tuple(turn.messages), action=action, error=turn.wrong, info=info)
        return await self._judged(seen)

    def say(self, action: str, thought: str = "") -> str:
        """`action` may be written as in Python, `sell("apple", count=2)`; anything else is an answer."""
        call = tool_calls.read_call(action)
        if call is None or call.name not in self.tool_names:
            return tool_calls.write(action, thought)
        schema = self.tools[self.tool_names.index(call.name)]["function"]["parameters"]
        names = {str(place): name for place, name in enumerate(schema.get("properties", {}))}
        arguments = {names.get(key, key): value for key, value in call.arguments.items()}
        return tool_calls.write(tool_calls.call_text(ToolCall(name=call.name, arguments=arguments)), thought)

    def _too_slow(self, call: ToolCall, limit_s: float) -> Exception:
        """What is raised for a call that took longer than `limit_s`."""
        return ToolTimeoutError(f"{call.name} took longer than {limit_s:.3g} s.")

    def timed_out(self) -> Observation | None:
        turn = self._turn
        if turn is None or turn.running is None:
            return None
        said = f"Error: {turn.running} did not return within {self.step_timeout_s:g} s."
        message = Message(role="tool", content=said, name=turn.running[:MAX_NAME])
        return Observation(
            messages=(*turn.messages, message), truncated=True, success=False, stop="tool_timeout", error=turn.wrong
        )

    @property
    def _judges(self) -> bool:
        return type(self).success is not ToolCallEnvironment.success

    async def _judged(self, seen: Observation) -> Observation:
        if not self._judges or seen.success is not None:
            return seen
        given = self.success()
        solved = bool(await given if isinstance(given, Awaitable) else given)
        if seen.done:
            return replace(seen, success=solved)
        return replace(seen, terminated=True, success=True) if solved else seen

    async def _answer(self, text: str) -> Observation:
        try:
            with attributed("answer"):
                given = self.answer(text)
                return await given if isinstance(given, Awaitable) else given
        except ToolError as error:
            return Observation.say(f"Error: {error}", error=error.word, info={RAISED: list(error.facts)})

    async def _run(self, call: ToolCall, turn: _Turn) -> None:
        """Runs one call and adds its result to the turn."""
        turn.running = call.name
        left_s = max(turn.deadline - time.monotonic(), 0.0)
        limit_s = left_s if self.tool_timeout_s is None else min(left_s, self.tool_timeout_s)
        try:
            if call.name not in self.tool_names:
                raise MisuseError(f"there is no tool {call.name!r:.80}; the tools are {', '.join(self.tool_names)}.")
            try:
                async with asyncio.timeout(limit_s) as clock:
                    with attributed(call.name):
                        result = self._use(call)
                        content = _text(await result if inspect.isawaitable(result) else result, turn.room)
            except TimeoutError:
                if not clock.expired():
                    raise
                raise self._too_slow(call, limit_s) from None
        except ToolError as error:
            content, turn.wrong = f"Error: {error}", error.word or turn.wrong
            if (left_out := len(content) - max(turn.room, MIN_ERROR)) > 0:  # servers put whole logs into theirs
                content = f"{content[:-left_out]} … {left_out:,} characters left out"
            turn.raised += error.facts
        content = content.encode(errors="replace").decode()  # half a surrogate pair can be written to no file
        turn.running = None
        turn.room -= len(content)
        turn.messages.append(Message(role="tool", content=content, name=call.name[:MAX_NAME], tool_call_id=call.id))


class MisuseError(ToolError):
    """An unknown tool, or arguments that do not fit its schema."""

    word = "tool_misuse"


def _text(result: Any, room: int) -> str:
    """What a tool returned, as the agent reads it. Raises ValueError or TypeError for what cannot be shown."""
    if result is None:
        return "Done."
    if inspect.isasyncgen(result):
        raise TypeError("the tool returned an async generator; it must return its result")
    text = result if isinstance(result, str) else to_json(result, fallback=str).decode()
    if len(text) > room:
        raise ValueError(f"its result has {len(text):,} characters; at most {room:,} can be shown")
    return text


F = TypeVar("F", bound=Callable[..., Any])
MARK = "_bough_tool"
# Methods for authors to call. One of the same name would be meant as a tool, and hide them.
FIXED = ("call", "end")


def tool(method: F) -> F:
    """Marks a method as a tool. Its parameters need type annotations, and it needs a docstring."""
    setattr(method, MARK, True)
    return method


class ToolEnvironment(ToolCallEnvironment):
    """An environment that is written as `start` and methods, which are its tools.

    A reply without a tool call goes to `answer`.
    """

    schemas: ClassVar[dict[str, ToolSchema]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        marked = [name for name in names if getattr(getattr(cls, name, None), MARK, False)]
        hidden = [name for name in FIXED if getattr(cls, name) is not getattr(ToolEnvironment, name)]
        if taken := hidden + [name for name in marked if hasattr(ToolEnvironment, name)]:
            raise TypeError(f"tool {cls.__name__}.{taken[0]}: every environment has {taken[0]}; choose another name")
        # Without a mark: public methods that the author wrote, in the order of the file.
        own = [base for base in reversed(cls.__mro__) if issubclass(base, ToolEnvironment)][1:]
        written = dict.fromkeys(name for base in own for name, value in vars(base).items() if inspect.isfunction(value))
        new = [name for name in written if not name.startswith("_") and not hasattr(ToolEnvironment, name)]
        public = [name for name in new if inspect.isfunction(getattr(cls, name))]
        cls.schemas = {name: ToolSchema.of(cls, name) for name in marked or public}
        cls.tools = tuple(schema.to_json() for schema in cls.schemas.values())

    def _use(self, call: ToolCall) -> Any:
        schema = self.schemas[call.name]
        try:
            arguments = schema.read(call.arguments)
        except ValidationError as error:
            raise MisuseError(schema.explain(error)) from None
        return getattr(self, call.name)(**arguments)

    def call(self, name: str, thought: str = "", /, **arguments: Any) -> str:
        """The reply that calls a tool, for experts: `return self.call("sell", item="apple")`.

        Raises InputError for a tool that does not exist; wrong arguments are for `step` to answer.
        """
        if name not in self.schemas:
            known = ", ".join(self.schemas) or "none"
            raise InputError(f"{type(self).__name__} has no tool {name!r:.80}; the tools are {known}")
        return tool_calls.write(tool_calls.call_text(ToolCall(name=name, arguments=arguments)), thought)
