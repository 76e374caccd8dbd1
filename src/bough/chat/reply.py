"""An agent's reply as environments get it: text, and the tool calls in it."""

from __future__ import annotations

from functools import cached_property

from bough.chat import hermes
from bough.chat.forms import MAX_CALLS, MalformedError, ParsedReply
from bough.types import Message, ToolCall


class Reply(str):
    """The text of a reply. `tool_calls` and `parsed` say what is in it.

    Calls that an engine delivered as data are passed on as they are; only a reply that
    came as text is parsed. What cannot be read, or is not JSON, raises `MalformedError`.
    """

    message: Message

    @classmethod
    def of(cls, given: Message | str) -> Reply:
        """The reply that a message is, or a text."""
        if isinstance(given, Reply):
            return given
        message = given if isinstance(given, Message) else Message(role="assistant", content=given)
        try:
            text = hermes.reply_text(message)
        except (ValueError, RecursionError):  # a call that JSON cannot carry, which `parsed` reports
            text = message.content
        reply = cls(text)
        reply.message = message
        return reply

    @cached_property
    def parsed(self) -> ParsedReply:
        """The thought, the action and the calls of the reply."""
        said = self.message
        if not said.tool_calls:
            return hermes.parse(self)
        if len(said.tool_calls) > MAX_CALLS:
            raise MalformedError(f"That is more than {MAX_CALLS} tool calls in one reply.")
        for call in said.tool_calls:
            hermes.check_call(call)
        action = "\n".join(map(hermes.call_text, said.tool_calls))
        return ParsedReply(thought=said.content.strip(), action=action, calls=tuple(said.tool_calls))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.parsed.calls
