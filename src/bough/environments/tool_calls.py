"""Environments whose actions are tool calls, wherever the tools come from.

Bough reads the calls of a reply, runs them in order and returns their results as tool
messages. `success()` may judge the state: the episode ends when it returns True, and a reply
without a call ends it with whatever `success()` returns then.

| what a tool does | what happens |
|---|---|
| refuses the call, or raises because of its arguments | the agent reads the error; the action is invalid |
| takes too long, or raises TimeoutError | the agent reads that; the action counts as valid |
| blocks its thread beyond the time limit of a step | the episode ends with stop `tool_timeout` and is kept |
| fails for another reason (network, disk) | the episode is played again |
"""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic_core import to_json

from bough.environments.base import Environment, Observation
from bough.environments.observations import MAX_TEXT
from bough.environments.tool_failures import RAISED, Raised, ToolError, ToolTimeoutError, attributed
from bough.speech import fenced, hermes
from bough.speech.base import MalformedError
from bough.speech.reply import Reply
from bough.types import Message, ToolCall

# Of a name that is not a tool's: the agent may have written anything.
MAX_NAME = 80
# Characters of an error that are shown even where the results before it left no room.
MIN_ERROR = 200
# The share of a step's time that all calls of a reply have together; the rest is for answering.
SHARE = 0.8
NOT_IN_TAGS = f"\n(The call was not inside {hermes.OPEN}{hermes.CLOSE}. Write it there.)"


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
    """An environment that is written as `start`, `tool_names` and `_use`. A reply without a call goes to `answer`."""

    # Time limit of one call, where it is less than what a step allows.
    tool_timeout_s: ClassVar[float | None] = None
    _end: Observation | None = None
    _turn: _Turn | None = None

    @property
    @abstractmethod
    def tool_names(self) -> Sequence[str]:
        """The tools that exist."""

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
        return Observation.say(f"{hermes.PROMPT}\nThe tools are {', '.join(self.tool_names)}.", error="malformed")

    async def step(self, reply: str) -> Observation:
        self._turn = None
        try:
            said = Reply.of(reply).parsed
        except MalformedError as error:
            return Observation.say(str(error), error="malformed")
        calls = said.calls or fenced.read_calls(said.action, self.tool_names)
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
        action = "\n".join(map(hermes.call_text, calls))
        seen = replace(ended, messages=tuple(turn.messages), action=action, error=turn.wrong, info=info)
        return await self._judged(seen)

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
            return Observation.say(f"Error: {error}", error=error.word, info={RAISED: error.facts})

    async def _run(self, call: ToolCall, turn: _Turn) -> None:
        """Runs one call and adds its result to the turn."""
        turn.running = call.name
        try:
            if call.name not in self.tool_names:
                raise MisuseError(f"there is no tool {call.name!r:.80}; the tools are {', '.join(self.tool_names)}.")
            content = await self._limited(call, turn)
        except ToolError as error:
            content, turn.wrong = _shortened(f"Error: {error}", turn.room), error.word or turn.wrong
            turn.raised += error.facts
        turn.running = None
        turn.room -= len(content)
        turn.messages.append(Message(role="tool", content=content, name=call.name[:MAX_NAME], tool_call_id=call.id))

    async def _limited(self, call: ToolCall, turn: _Turn) -> str:
        left_s = max(turn.deadline - time.monotonic(), 0.0)
        limit_s = left_s if self.tool_timeout_s is None else min(left_s, self.tool_timeout_s)
        try:
            async with asyncio.timeout(limit_s) as clock:
                with attributed(call.name):
                    result = self._use(call)
                    return _text(await result if inspect.isawaitable(result) else result, turn.room)
        except TimeoutError:
            if not clock.expired():
                raise
            raise self._too_slow(call, limit_s) from None


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
    return _writable(text)


def _shortened(text: str, room: int) -> str:
    """A tool's error as the agent reads it. Servers put whole logs into theirs."""
    left_out = len(text) - max(room, MIN_ERROR)
    return _writable(text if left_out <= 0 else f"{text[:-left_out]} … {left_out:,} characters left out")


def _writable(text: str) -> str:
    """Half a surrogate pair cannot be written to any file."""
    return text.encode(errors="replace").decode()
