"""A reply's text as a message: tool calls that the model wrote in its template's own form become data.

Hermes calls stay text: whoever reads a reply knows them, and the next prompt then continues with
the very tokens that were sampled. Any other form is read here, and the template writes it again
in later prompts, as it does in the model's training.
"""

from __future__ import annotations

from bough.calls.template import ChatTemplate
from bough.digest import text_digest
from bough.types import Message, ToolCall

# Mistral's templates take ids of this length only; to all others it does not matter.
ID_LENGTH = 9


def read_reply(template: ChatTemplate, text: str, *, place: int) -> Message:
    """The reply to a prompt with tools. `place` in the conversation keeps the ids of equal calls apart."""
    form = template.call_form
    content, calls = (text, list[ToolCall]()) if form is None else form.split(text)
    plain = Message(role="assistant", content=text)
    if not calls:
        return plain
    ids = [text_digest(f"{place} {number} {text}", size=8)[:ID_LENGTH] for number in range(len(calls))]
    named = [
        call if call.id and len(call.id) == ID_LENGTH and call.id.isalnum() else call.model_copy(update={"id": id})
        for call, id in zip(calls, ids, strict=True)
    ]
    reply = Message(role="assistant", content=content, tool_calls=named)
    # Llama 3 takes one call per message: what the template could not show in a later prompt stays text.
    return reply if template.takes(reply) else plain
