"""Environments whose actions are tool calls: each method marked with `@tool` is a tool.

    class Shop(ToolEnvironment):
        def start(self) -> Observation:
            return Observation.begin("You work in a shop.", "Sell one apple.")

        @tool
        def sell(self, item: str, count: int = 1) -> str:
            \"\"\"Sells an item.

            Args:
                item: What to sell.
            \"\"\"
            self.end(success=item == "apple")
            return f"Sold {count} {item}."

The agent gets a JSON schema of every tool, made from its signature and docstring. Bough
reads the calls of a reply, checks the arguments, runs the methods in order and returns their
results as tool messages. A tool that raises: `bough.environments.tool_failures`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError
from pydantic_core import to_json

from bough.environments.base import Environment, Observation
from bough.environments.observations import MAX_TEXT
from bough.environments.tool_failures import RAISED, Raised, ToolError, attributed
from bough.environments.tool_schema import ToolSchema
from bough.errors import InputError, short_path
from bough.speech import functions, hermes
from bough.speech.base import MalformedError
from bough.speech.reply import Reply
from bough.types import Message, ToolCall

F = TypeVar("F", bound=Callable[..., Any])
MARK = "_bough_tool"
# Of a name that is not a tool's: the agent may have written anything.
MAX_NAME = 80


def tool(method: F) -> F:
    """Marks a method as a tool. Its parameters need type annotations, and it needs a docstring."""
    setattr(method, MARK, True)
    return method


class MisuseError(ToolError):
    """An unknown tool, or arguments that do not fit its schema."""

    word = "tool_misuse"


class ToolEnvironment(Environment):
    """An environment that is written as `start` and methods marked with `@tool`.

    A reply without a tool call goes to `answer`.
    """

    schemas: ClassVar[dict[str, ToolSchema]] = {}
    _end: Observation | None = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        marked = [name for name in names if getattr(getattr(cls, name, None), MARK, False)]
        if taken := [name for name in marked if hasattr(ToolEnvironment, name)]:
            raise TypeError(f"tool {cls.__name__}.{taken[0]}: every environment has {taken[0]}; choose another name")
        cls.schemas = {name: ToolSchema.of(cls, name) for name in marked}
        cls.tools = tuple(schema.to_json() for schema in cls.schemas.values())

    def end(self, *, success: bool | None = None, reward: float | None = None, **more: Any) -> None:
        """Ends the episode with this turn; `more` are further fields of its observation. Call it inside a tool."""
        self._end = Observation.end(success=success, reward=reward, **more)

    def answer(self, text: str) -> Observation | Awaitable[Observation]:  # noqa: ARG002
        """The result of a reply without a tool call: by default it is invalid. Override it to accept an answer."""
        return Observation.say(f"{hermes.PROMPT}\nThe tools are {', '.join(self.schemas)}.", error="malformed")

    async def step(self, reply: str) -> Observation:
        try:
            said = Reply.of(reply).parsed
        except MalformedError as error:
            return Observation.say(str(error), error="malformed")
        if not said.calls:
            return await self._answer(said.action)
        messages: list[Message] = []
        wrong: str | None = None
        raised: list[Raised] = []
        # Limited for all calls together, so that no agent makes its observation too long to be kept.
        room = MAX_TEXT // 2
        for call in said.calls:
            try:
                content = await self._use(call, room)
            except ToolError as error:
                content, wrong = f"Error: {error}", error.word
                raised += error.facts
            room -= len(content)
            messages.append(Message(role="tool", content=content, name=call.name[:MAX_NAME]))
            if self._end is not None:
                break
        ended = self._end or Observation()
        info = {**ended.info, RAISED: raised} if raised else ended.info
        return replace(ended, messages=tuple(messages), action=said.action, error=wrong, info=info)

    async def _answer(self, text: str) -> Observation:
        try:
            with attributed("answer"):
                given = self.answer(text)
                return await given if isinstance(given, Awaitable) else given
        except ToolError as error:
            return Observation.say(f"Error: {error}", error=error.word, info={RAISED: error.facts})

    async def _use(self, call: ToolCall, room: int) -> str:
        """The result of one call as text of at most `room` characters. Raises ToolError for an invalid call."""
        schema = self.schemas.get(call.name)
        if schema is None:
            raise MisuseError(f"there is no tool {call.name!r:.80}; the tools are {', '.join(self.schemas)}.")
        try:
            arguments = schema.read(call.arguments)
        except ValidationError as error:
            raise MisuseError(schema.explain(error)) from None
        with attributed(call.name):
            result = getattr(self, call.name)(**arguments)
            if inspect.isawaitable(result):
                result = await result
            return _text(result, room)

    def call(self, name: str, thought: str = "", /, **arguments: Any) -> str:
        """The reply that calls a tool, for experts: `return self.call("sell", item="apple")`.

        Raises InputError for a tool that does not exist; wrong arguments are for `step` to answer.
        """
        if name not in self.schemas:
            author = sys._getframe(1)
            raise InputError(
                f"{short_path(author.f_code.co_filename)}:{author.f_lineno}: {type(self).__name__} has no tool "
                f"{name!r:.80}; the tools are {', '.join(self.schemas) or 'none'}"
            )
        return hermes.write(hermes.call_text(ToolCall(name=name, arguments=arguments)), thought)

    def say(self, action: str, thought: str = "") -> str:
        """`action` may be written as in Python, `sell("apple", count=2)`; anything else is an answer."""
        call = functions.read_call(action)
        if call is None or call.name not in self.schemas:
            return hermes.write(action, thought)
        return self.call(call.name, thought, **self.schemas[call.name].named(call.arguments))


def _text(result: Any, room: int) -> str:
    """What a tool returned, as the agent reads it. Raises ValueError or TypeError for what cannot be shown."""
    if result is None:
        return "Done."
    if inspect.isasyncgen(result):
        raise TypeError("the tool returned an async generator; it must return its result")
    text = result if isinstance(result, str) else to_json(result, fallback=str).decode()
    if len(text) > room:
        raise ValueError(f"its result has {len(text):,} characters; at most {room:,} can be shown")
    # Half a surrogate pair cannot be written to any file.
    return text.encode(errors="replace").decode()
