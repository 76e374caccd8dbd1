"""A model's chat template: what it can express, and what a prompt and an answer look like in it.

Nothing about a template is assumed. Small conversations are rendered to find out what
ends a turn, whether it supports tools and a system role, and what it puts before an
answer. What it does not support is written in a documented way instead
(`without_tools`, `without_system`).
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any

import jinja2
from jinja2 import nodes

from bough.chat.tokenizer import ControlTokens, any_of, plain
from bough.chat.tool_calls import CallForm, form_of, reply_text
from bough.data.base import common_prefix
from bough.errors import InputError, RowError, first_line
from bough.files import read_small, text_digest
from bough.types import Call, Message, ToolCall, Turn, conversation, split_conversation

Spoken = dict[str, Any]
MARK = "Bough4mark7"
PLAIN = ("system", "user", "assistant")  # roles that every template with a system role knows
MAX_TEMPLATE = 1 << 20  # bytes; the longest that models have are a hundredth of it
# For all small conversations that are rendered on loading: most templates take milliseconds.
MAX_LOADING_S = 60.0


class ChatTemplate:
    """A tokenizer's chat template. Raises InputError if there is none or it has no end-of-turn token.

    The texts that it gives are escaped: control tokens are the template's own, and what looks
    like one in a message or a tool is text (`bough.chat.tokenizer`). `end_ids` are further tokens
    that end a reply when the model writes them.
    """

    def __init__(self, tokenizer: Any, name: str = "the model", end_ids: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.name = name
        if not tokenizer.chat_template:
            raise InputError(
                f"{name} has no chat template, so messages cannot become tokens; "
                "take its instruct version, or give a Jinja file with --chat-template"
            )
        try:
            whole = self._render([USER, {"role": "assistant", "content": MARK}])
        except Exception as error:  # a template breaks in whatever way it likes
            raise InputError(f"{name}: the chat template cannot be used: {first_line(error)}") from None
        if MARK not in whole:
            raise InputError(f"{name}: the chat template does not render an assistant message")
        ids = tokenizer(whole.partition(MARK)[2].lstrip(), add_special_tokens=False)["input_ids"]
        if not ids or ids[0] not in tokenizer.added_tokens_decoder:
            raise InputError(
                f"{name}: the chat template puts no end-of-turn token after an assistant message, "
                "so a model trained with it never learns to stop; give a corrected Jinja file with --chat-template"
            )
        self.end_of_turn_id = int(ids[0])
        # Models end some replies with another token than the template does: Llama 3 a tool call, for example.
        self.stop_ids: list[int] = list(dict.fromkeys([self.end_of_turn_id, *end_ids]))
        self.end_of_turn: str = tokenizer.convert_ids_to_tokens(self.end_of_turn_id)
        self._added = any_of(token.content for token in tokenizer.added_tokens_decoder.values())
        self.control = ControlTokens(tokenizer, {self.end_of_turn, *self._around_turns()}, self._inside_answers())
        self._encoder = Encoder(self.control)

    def text(self, messages: list[Message]) -> str:
        """The text of messages that are not the newest, without the beginning of an answer."""
        return self._render_or_refuse(messages, [])

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]]) -> str:
        """The text that the model answers to, given `messages`."""
        return self._render_or_refuse(with_hint(messages), tools, add_generation_prompt=True)

    @cached_property
    def writes_each_alone(self) -> bool:
        """Whether the template writes message after message, each without a look at others but the first.

        That is read off its syntax: one loop over all messages, which knows of its place only whether it is the first,
        and remembers nothing; after it only the beginning of an answer. Only then is the text of a conversation that
        of a shorter one and of what is new.
        """
        if not isinstance(self.tokenizer.chat_template, str):
            return False
        try:
            # As transformers reads it: the line ends after its blocks are no text.
            syntax = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
            tree = syntax.parse(self.tokenizer.chat_template)
        except jinja2.TemplateError:
            return False
        loops = [node for node in tree.find_all(nodes.For) if node.iter == nodes.Name("messages", "load")]
        if len(loops) != 1 or loops[0] not in tree.body or loops[0].test or not isinstance(loops[0].target, nodes.Name):
            return False
        for after in tree.body[tree.body.index(loops[0]) + 1 :]:
            if not isinstance(after, nodes.If) or after.test != nodes.Name("add_generation_prompt", "load"):
                return False
            if after.elif_ or after.else_:
                return False
        plain = not any(tree.find_all((nodes.Assign, nodes.AssignBlock, nodes.Macro, nodes.CallBlock, nodes.Include)))
        called = [call.node for call in tree.find_all(nodes.Call)]
        functions = {one.name for one in called if isinstance(one, nodes.Name)}
        firsts = [one.node for one in tree.find_all(nodes.Getitem) if one.arg == nodes.Const(0)]
        names = [one for one in tree.find_all(nodes.Name) if one.name == "messages"]
        places = {one.attr for one in tree.find_all(nodes.Getattr) if one.node == nodes.Name("loop", "load")}
        return (
            plain
            and functions <= {"raise_exception"}
            and all(one is loops[0].iter or any(one is first for first in firsts) for one in names)
            and places <= {"first"}
            and sum(one.name == "loop" for one in tree.find_all(nodes.Name))
            == sum(one.node == nodes.Name("loop", "load") for one in tree.find_all(nodes.Getattr))
            and not any(one.name == "add_generation_prompt" for one in loops[0].find_all(nodes.Name))
        )

    def answer(self, messages: list[Message], reply: Message, tools: list[dict[str, Any]]) -> str:
        """The text of `reply`, without its end-of-turn token, as the model itself would have to write it.

        Plain content is taken to the letter. Tool calls and separate reasoning have no
        text of their own: the template writes them, and its answer is cut out of it.
        """
        if not (reply.reasoning or (reply.tool_calls and self.knows_tools)):
            return reply_text(self.control.escape_message(reply))
        prompt = self.prompt(messages, tools)
        whole = self._render_or_refuse([*with_hint(messages), reply], tools)
        if not whole.startswith(prompt):
            said = "the template rewrites the prompt once the reply with its tool calls follows"
            raise RowError("template_refused", said)
        text = whole[len(prompt) :].rpartition(self.end_of_turn)[0]
        return text if reply.reasoning else text.removeprefix(self.opening)

    def encode_prompt(self, text: str) -> list[int]:
        return self._encoder.encode(text)

    def encode_answer(self, text: str) -> list[int]:
        """The answer's tokens and the end of its turn.

        A reply that writes the end of its turn as text is refused: most likely it was left
        there by whoever made the data, and training on it teaches not to stop.
        """
        if self.end_of_turn in plain(text):
            said = f"the text of the reply contains the end-of-turn token {self.end_of_turn}"
            raise RowError("end_of_turn_inside", said)
        return [*self.control.encode(text), self.end_of_turn_id]

    def without_end(self, ids: list[int]) -> list[int]:
        """A reply's tokens without the one that ended it, if there is one."""
        return ids[:-1] if ids and ids[-1] in self.stop_ids else ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, control tokens included."""
        return self.control.direct.decode(ids)

    @cached_property
    def knows_system(self) -> bool:
        return self._expresses([{"role": "system", "content": MARK}, USER])

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template supports tools, tool calls and tool results."""
        result = {"role": "tool", "tool_call_id": "123456789", "name": "f", "content": MARK}
        return (
            self._expresses([USER], tools=[TOOL])
            and self._expresses([USER, _calling(MARK)])
            and self._expresses([USER, _calling("f"), result])
        )

    @cached_property
    def call_form(self) -> CallForm | None:
        """How the template writes tool calls; None if it is Hermes' way, or cannot be read."""
        example = ToolCall(name=MARK, arguments={"x": "1"}, id="123456789")
        reply = Message(role="assistant", tool_calls=[example])
        try:
            return form_of(self.answer([Message.model_validate(USER)], reply, [TOOL]), example)
        except RowError:
            return None

    def takes(self, reply: Message) -> bool:
        """Whether a later prompt can contain the reply."""
        try:
            self._render([USER, _spoken(reply)], tools=[TOOL])
        except Exception:  # templates refuse by raising whatever they like
            return False
        return True

    @cached_property
    def opening(self) -> str:
        """What the template puts before an answer's content by itself (Qwen3: an empty think block)."""
        prompt = self._render([USER], add_generation_prompt=True)
        whole = self._render([USER, {"role": "assistant", "content": MARK}])
        before = whole[: whole.index(MARK)]
        return before.removeprefix(prompt) if before.startswith(prompt) else ""

    def speak(
        self, messages: list[Message], tools: list[dict[str, Any]]
    ) -> tuple[list[Spoken], list[dict[str, Any]] | None]:
        """Messages and tools in the form the template takes, fallbacks applied."""
        if not self.knows_tools:
            messages = without_tools(messages, tools)
            tools = []
        if not self.knows_system:
            messages = without_system(messages)
        return [_spoken(message) for message in messages], tools or None

    def _around_turns(self) -> Iterator[str]:
        """The added tokens between the text of a reply, the message after it and the reply to that."""
        turns = [USER, {"role": "assistant", "content": MARK}, USER]
        try:
            whole, opened = self._render(turns), self._render(turns, add_generation_prompt=True)
        except Exception:  # a template for one exchange only
            return
        yield from self._added.findall(whole.partition(MARK)[2])
        # What follows the header of a reply may be the reply's own beginning, such as <think>.
        yield from self._added.findall(opened.removeprefix(whole))[:1]

    def _inside_answers(self) -> Iterator[str]:
        """The added tokens with which the template writes tool calls and reasoning."""
        for reply in [_calling("f")] * self.knows_tools + [{**USER, "role": "assistant", "reasoning_content": MARK}]:
            with suppress(Exception):  # a template that refuses one of them does not write it
                prompt, whole = self._render([USER], add_generation_prompt=True), self._render([USER, reply])
                answer = whole[len(prompt) :] if whole.startswith(prompt) else ""
                inside = self._added.findall(answer.rpartition(self.end_of_turn)[0])
                yield from (token for token in inside if token != self.end_of_turn)

    def _expresses(self, messages: list[Spoken], tools: list[dict[str, Any]] | None = None) -> bool:
        try:
            return MARK in self._render(messages, tools=tools)
        except Exception:  # templates refuse by raising whatever they like
            return False

    def _render_or_refuse(self, messages: list[Message], tools: list[dict[str, Any]], **options: Any) -> str:
        spoken, offered = self.speak(list(map(self.control.escape_message, messages)), self.control.escape_json(tools))
        try:
            return self._render(spoken, tools=offered, **options)
        except Exception as error:  # a template rejects with TemplateError, or fails with any other error
            raise RowError("template_refused", f"the chat template rejects the conversation: {error}") from None

    def _render(self, messages: list[Spoken], **options: Any) -> str:
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return text


class GrowingPrompt:
    """The prompts of one conversation. Where the template writes each message alone, only new ones are rendered."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._shown: list[Message] = []
        self._text = self._first = self._ending = ""  # of the shown messages, of the first of them, before an answer

    def new(self, messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
        """The messages that must be rendered."""
        known = len(self._shown)
        old = not tools and 0 < known < len(messages) and all(map(operator.is_, self._shown, messages))
        return messages[known:] if old else messages

    def text(self, messages: list[Message], tools: list[dict[str, Any]]) -> str:
        """What `ChatTemplate.prompt` gives."""
        template, new = self._template, self.new(messages, tools)
        whole = tools or len(messages) < 2 or not template.writes_each_alone
        if whole or any(one.role not in PLAIN or one.tool_calls for one in new) or not template.knows_system:
            self._shown = []
            return template.prompt(messages, tools)
        first = messages[0]
        if new is messages:
            self._first = self._text = template.text([first])
            self._ending = template.prompt([first], [])[len(self._first) :]
            self._shown, new = [first], messages[1:]
        *older, newest = new
        if newest.hint and older:  # the hint is gone from the next prompt
            self._text += template.text([first, *older])[len(self._first) :]
            self._shown, older = self._shown + older, []
        text = self._text + template.prompt([first, *older, newest], [])[len(self._first) :]
        if not newest.hint:
            self._text, self._shown = text.removesuffix(self._ending), list(messages)
        return text


def load_template(model: str, jinja_file: Path | None = None) -> ChatTemplate:
    """The chat template of a model, or one from a file instead."""
    from bough.models.resolve import end_token_ids, load_tokenizer

    tokenizer = load_tokenizer(model)
    if jinja_file is not None:
        try:
            tokenizer.chat_template = read_small(jinja_file, MAX_TEMPLATE)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error
            raise InputError(f"--chat-template {jinja_file}: cannot be read: {said}") from None
    own = tokenizer.chat_template or ""
    if sum(map(len, own.values() if isinstance(own, dict) else [own])) > MAX_TEMPLATE:
        raise InputError(f"the chat template of {model} is larger than {MAX_TEMPLATE >> 10:,} KiB")
    end_ids, found = end_token_ids(model), Future[ChatTemplate]()

    def load() -> None:
        try:
            found.set_result(ChatTemplate(tokenizer, model, end_ids))
        except BaseException as error:
            found.set_exception(error)

    # In a thread that does not keep Python from exiting: a template may not end.
    Thread(target=load, name="bough-template", daemon=True).start()
    try:
        return found.result(MAX_LOADING_S)
    except TimeoutError:
        if found.done():
            raise  # its own
        raise InputError(f"the chat template of {model} did not render in {MAX_LOADING_S:g} s") from None


USER: Spoken = {"role": "user", "content": "Hello"}
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": MARK, "description": "", "parameters": PARAMETERS}}


def _calling(name: str) -> Spoken:
    call = {"id": "123456789", "type": "function", "function": {"name": name, "arguments": {"x": "1"}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def with_hint(messages: list[Message]) -> list[Message]:
    """The conversation as it is read now: the newest message with its hint, the older ones without theirs."""
    *older, newest = messages
    return [*older, newest.model_copy(update={"content": newest.content + (newest.hint or ""), "hint": None})]


def _spoken(message: Message) -> Spoken:
    spoken: Spoken = {"role": message.role, "content": message.content}
    if message.tool_calls:
        spoken["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    more = {"reasoning_content": message.reasoning, "tool_call_id": message.tool_call_id, "name": message.name}
    return spoken | {key: value for key, value in more.items() if value is not None}


# Encodes texts to token ids and reuses the ids of the prefix shared with the text before.
# The prompts of an episode grow by a step at a time, and a tokenizer splits text at its control tokens before
# anything else. So the ids of everything in front of a control token stay the same whatever comes after it, and only
# the rest needs encoding.


class Encoder:
    """Encodes texts, best in the order in which they grow out of each other."""

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._ids, self._special = control.cuts
        self._text = ""
        self._tokens: list[int] = []
        # For each control token where it starts and ends in the text, and its place among the ids.
        self._places: list[tuple[int, int, int]] = []
        # Where the part of the text and of the ids begins whose control tokens are not looked up yet.
        self._unread = (0, 0)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, as `ControlTokens.encode` gives them."""
        common = common_prefix(self._text, text)
        if common:
            self._read()  # only now: most texts have no successor
        while self._places and self._places[-1][1] > common:
            self._places.pop()
        # The last control token that both texts share: the ids before it stay.
        begin, _, kept = self._places.pop() if self._places else (0, 0, 0)
        self._text, self._tokens = text, self._tokens[:kept] + self._control.encode(text[begin:])
        self._unread = begin, kept
        return list(self._tokens)

    def _read(self) -> None:
        """Looks up the control tokens in what was encoded last."""
        begin, kept = self._unread
        spans = [match.span() for match in self._special.finditer(self._text, begin)]
        places = [i for i in range(kept, len(self._tokens)) if self._tokens[i] in self._ids]
        if len(spans) == len(places):  # else one of them is part of a longer token
            self._places += [(*span, place) for span, place in zip(spans, places, strict=True)]


# How tools and system messages are written for a template that supports neither.
# Tools follow the Hermes convention, the one most open models have seen: the signatures inside `<tools>` in the
# system message, a call as `<tool_call>{"name", "arguments"}</tool_call>` in the assistant's text, a result as
# `<tool_response>` in a user message. A system message is put before the first user message, separated by a blank
# line.

INSTRUCTIONS = """# Tools

You may call one or more functions. Their signatures are within <tools></tools>:
<tools>
{signatures}
</tools>

For each function call, return a JSON object with the function's name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <name>, "arguments": <arguments as an object>}}
</tool_call>"""


def without_tools(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """The same conversation in system, user and plain assistant messages only."""
    spoken: list[Message] = []
    in_results = False
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            if in_results:
                text = f"{spoken.pop().content}\n{text}"
            spoken.append(Message(role="user", content=text))
        elif message.tool_calls:
            spoken.append(Message(role="assistant", content=reply_text(message), reasoning=message.reasoning))
        else:
            spoken.append(message)
        in_results = message.role == "tool"
    if not tools:
        return spoken
    instructions = INSTRUCTIONS.format(signatures="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if spoken[0].role == "system":
        return [Message(role="system", content=f"{spoken[0].content}\n\n{instructions}"), *spoken[1:]]
    return [Message(role="system", content=instructions), *spoken]


def without_system(messages: list[Message]) -> list[Message]:
    """The same conversation with its system message put before the first user message."""
    if messages[0].role != "system":
        return messages
    system, *others = messages
    if not others or others[0].role != "user":
        return [Message(role="user", content=system.content), *others]
    return [Message(role="user", content=f"{system.content}\n\n{others[0].content}"), *others[1:]]


# From messages to calls: for every trained turn, exactly the tokens of inference.


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
