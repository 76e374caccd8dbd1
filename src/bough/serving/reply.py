"""A model's reply as the client sees it, and how it is recognised when the client sends it back.

A model writes tool calls as text. The client gets them as data, without their tags, and cut
at its stop text; sent back in the next request, such a message is found again at its place in
the conversation (`extended`) and takes the form in which the model wrote it, so that the prompt
continues with the same tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from bough.digest import json_digest, text_digest
from bough.speech import fenced, hermes
from bough.speech.base import MalformedError
from bough.types import Message, ToolCall

CALL = re.compile(re.escape(hermes.OPEN) + ".*?" + re.escape(hermes.CLOSE), re.DOTALL)


def without_stop(reply: Message, stop: Sequence[str]) -> Message:
    """The reply up to the first stop text in it."""
    ends = [at for text in stop if (at := reply.content.find(text)) >= 0]
    return reply.model_copy(update={"content": reply.content[: min(ends)]}) if ends else reply


def shown_reply(reply: Message, *, name: str, tool_names: Collection[str]) -> Message:
    """The reply with its tool calls as data. A call that cannot be read stays text; `name` makes the ids unique."""
    content, calls = (reply.content, list(reply.tool_calls)) if reply.tool_calls else _split(reply.content, tool_names)
    numbered = [call.model_copy(update={"id": call.id or f"call_{name}_{i}"}) for i, call in enumerate(calls)]
    return reply.model_copy(update={"content": content, "tool_calls": numbered})


def reply_key(message: Message) -> str:
    """A digest of what a message says: clients drop or change ids, names and white space at the ends."""
    calls = [[call.name, sorted(call.arguments.items())] for call in message.tool_calls]
    return json_digest([message.role, message.content.strip(), calls], size=16)


def exact_key(message: Message) -> str:
    """A digest of a message as it was sent, with the ids of its calls."""
    calls = [[call.id, call.name, sorted(call.arguments.items())] for call in message.tool_calls]
    return json_digest([message.role, message.content, calls], size=16)


def extended(conversation: str, key: str) -> str:
    """The digest of a conversation, given by its own digest, with one more message, given by its key."""
    return text_digest(f"{conversation} {key}", size=16)


def is_malformed(reply: Message, shown: Message) -> bool:
    """Whether the model wrote calls that were understood, but not in the form that it was told to use."""
    return bool(shown.tool_calls) and not reply.tool_calls and not hermes.parse(reply.content).calls


def _split(text: str, tool_names: Collection[str]) -> tuple[str, list[ToolCall]]:
    try:
        calls = hermes.parse(text).calls
    except MalformedError:
        return text, []
    if not calls:
        content, understood = fenced.split(text, tool_names)
        return content, list(understood)
    thinking, ended, spoken = text.rpartition("</think>")
    return (thinking + ended + CALL.sub("", spoken)).rstrip(), list(calls)
