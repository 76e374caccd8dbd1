"""From messages to calls: for every trained turn, exactly the tokens of inference.

The prompt is the template rendered up to that turn with the generation prompt, the
completion is the reply and its end-of-turn token; each is encoded separately, as in
sampling. Nothing is dropped silently: a prompt that is too long loses its oldest whole
steps, and a turn that cannot be trained has a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bough.chat.template import ChatTemplate
from bough.chat.tokenizer import plain
from bough.errors import RowError
from bough.files import text_digest
from bough.types import Call, Message, ToolCall, Turn, conversation, split_conversation


@dataclass(frozen=True)
class Built:
    """A trained turn's call, or why there is none. `dropped_steps` counts the old steps dropped from its prompt."""

    turn: int
    call: Call | None
    reason: str | None = None
    message: str = ""
    dropped_steps: int = 0


class CallBuilder:
    """Turns into calls for one chat template.

    `max_length` bounds prompt and completion together. Where it is passed, the oldest
    steps go until `stride` of it is free again, and the same steps stay away in the
    following calls until those are too long in turn: neighbouring calls keep a prefix in
    common, which is what makes them cheap to train. The start (system and task) and the
    latest steps always stay.

    `context` is how many tokens the model can read. No call is longer: it bounds
    `max_length`, and without `max_length` a longer call is dropped as it is.
    """

    def __init__(
        self,
        template: ChatTemplate,
        *,
        max_length: int | None = None,
        stride: float = 0.25,
        context: int | None = None,
    ) -> None:
        self.template = template
        self.max_length = min(max_length, context or max_length) if max_length else None
        self.stride = stride
        self.context = context

    @property
    def limit(self) -> str:
        """What bounds a call, in words."""
        if self.max_length is not None and self.max_length != self.context:
            return f"max_length {self.max_length}"
        return f"the model's context of {self.context} tokens"

    def build(self, start: list[Message], turns: list[Turn], tools: list[dict[str, Any]]) -> Iterator[Built]:
        """One `Built` for each of `turns` that is to be trained, in order.

        Replies inside `start` are steps too: they are context, and may be dropped. Where a turn
        has a correction, its call answers with that; the prompts after it have the reply itself.
        """
        start, history = split_conversation(start)
        turns = history + turns
        first = 0
        for index in range(len(history), len(turns)):
            turn, number = turns[index], index - len(history)
            if not turn.trained:
                continue
            recorded = turn.call
            if recorded is not None:
                # Tokens of another model's tokenizer are built again from the messages.
                said = self.template.without_end(recorded.completion_ids)
                known = max([*recorded.prompt_ids, *said], default=0) < len(self.template.tokenizer)
                recorded = recorded if known and self.template.tokenizer.decode(said) == recorded.text else None
            if recorded is not None and turn.correction is None:
                length, built = len(recorded.prompt_ids) + len(recorded.completion_ids), Built(number, recorded)
                if not recorded.completion_ids:
                    built = Built(number, None, "empty_completion", "the recorded call has no completion token")
                elif self.max_length is not None and length > self.max_length:
                    message = f"the recorded call is {length} tokens; max_length is {self.max_length}"
                    built = Built(number, None, "too_long", message)
                yield self._within_context(built)
                continue
            if turn.prompt is not None:
                alone = turn.model_copy(update={"prompt": None})
                [built] = self.build(turn.prompt, [alone], tools if turn.tools is None else turn.tools)
                yield replace(built, turn=number)
                continue
            try:
                reply = turn.correction or turn.reply
                if reply.empty:
                    raise RowError("empty_completion", "the reply is empty")
                text = self.template.answer(conversation(start, turns[first:index]), reply, tools)
                completion = self.template.encode_answer(text)
                limit = self.max_length
                if recorded is not None and (limit is None or len(recorded.prompt_ids) + len(completion) <= limit):
                    prompt = recorded.prompt_ids
                else:
                    first, prompt = self._prompt(start, turns, first, index, tools, len(completion))
            except RowError as error:
                yield Built(number, None, error.reason, str(error))
                continue
            call = Call(prompt_ids=prompt, completion_ids=completion, text=plain(text))
            yield self._within_context(Built(number, call, dropped_steps=first))

    def _prompt(
        self, start: list[Message], turns: list[Turn], first: int, index: int, tools: list[dict[str, Any]], answer: int
    ) -> tuple[int, list[int]]:
        """The prompt of turn `index` that begins with step `first`, or later if it must, and where it begins."""

        def prompt(begin: int) -> list[int]:
            text = self.template.prompt(conversation(start, turns[begin:index]), tools)
            return self.template.encode_prompt(text)

        ids = prompt(first)
        if self.max_length is None or len(ids) + answer <= self.max_length:
            return first, ids
        bare = prompt(index)
        if len(bare) + answer > self.max_length:
            said = f"start and reply alone are {len(bare) + answer} tokens; max_length is {self.max_length}"
            raise RowError("too_long", said)
        room = max(self.max_length * (1 - self.stride), len(bare) + answer)
        low, high = first + 1, index
        while low < high:
            middle = (low + high) // 2
            if len(prompt(middle)) + answer <= room:
                high = middle
            else:
                low = middle + 1
        return low, prompt(low)

    def _within_context(self, built: Built) -> Built:
        """The call, or why the model cannot read it."""
        length = len(built.call.prompt_ids) + len(built.call.completion_ids) if built.call else 0
        if self.context is None or length <= self.context:
            return built
        return Built(
            built.turn, None, "too_long",
            f"the call is {length} tokens and the model's context {self.context}; "
            "--max-length leaves out the oldest steps of a long prompt",
        )  # fmt: skip


# A reply's text as a message: tool calls that the model wrote in its template's own form become data.
# Hermes calls stay text: whoever reads a reply knows them, and the next prompt then continues with the very tokens
# that were sampled. Any other form is read here, and the template writes it again in later prompts, as it does in the
# model's training.

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
