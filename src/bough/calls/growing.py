"""The prompts of an episode, each made from the one before: only what is new is written.

For a local template (`bough.calls.locality`) the text after the last old message depends on the
start of the conversation and on the latest two turns, and the contents of these turns are
only copied into it. So the template renders two short conversations with placeholders as
contents, and their difference is a rule: the end of the old text is replaced by a text with
holes for the new contents. A rule is made once per start and kind of turn, and all attempts
at a task share it. Every text equals that of `ChatTemplate.prompt`; where this is not known
beforehand, `ChatTemplate.prompt` renders the whole conversation.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bough.calls.locality import Locality, locality
from bough.calls.template import ChatTemplate
from bough.calls.thoughts import is_question, without_thoughts
from bough.errors import RowError
from bough.formats.bough import common_prefix
from bough.types import Message

log = logging.getLogger(__name__)
Tools = list[dict[str, Any]]
Kind = tuple[Any, ...]
# Around a placeholder: if a template trims a content, these spaces are gone.
SPACE = "\N{EM SPACE}"
# A secret, so that no text of an environment is taken for a placeholder.
NAME = f"placeholder{secrets.token_hex(8)}n"
PLACEHOLDER = re.compile(NAME + "([0-9]+)e")
# Starts whose rules are kept, and rules per start: tool results may have ids that never come again.
MAX_STARTS, MAX_RULES = 512, 64
# Prompts of each template that are compared with the whole rendering, in case a proof has a gap.
NUM_CHECKS = 2


@dataclass(frozen=True)
class Hole:
    """Where the content of message `number` is copied to, with or without the white space at its ends."""

    number: int
    keeps_start: bool
    keeps_end: bool

    def shows(self, content: str) -> str:
        content = content if self.keeps_start else content.lstrip()
        return content if self.keeps_end else content.rstrip()


@dataclass(frozen=True)
class Rule:
    """The old text ends with the content of `newest` (None: of no turn) and `end`; `parts` take the place of `end`."""

    newest: Hole | None
    end: str
    parts: list[str | Hole]


@dataclass
class Start:
    """What comes before the first reply, and the rules of the conversations that begin so."""

    messages: list[Message]
    tools: Tools
    rules: dict[Kind, Rule | None] = field(default_factory=dict)
    text: str | None = None


class Prompts:
    """The prompts of a chat template. If they must be rendered whole, the log says so once."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        source = template.source
        self.locality = locality(source) if source is not None and SPACE not in source else None
        self.unchecked = NUM_CHECKS
        self._starts: OrderedDict[Kind, Start] = OrderedDict()
        self._told = False

    def begin(self) -> GrowingPrompt:
        """The prompts of one conversation."""
        return GrowingPrompt(self)

    def whole(self, messages: list[Message], tools: Tools) -> str:
        return self.template.prompt(messages, tools)

    def local(self) -> Locality | None:
        if self.locality is None and not self._told:
            self._told = True
            log.info(
                "%s: the chat template may rewrite earlier messages, so each turn renders the whole conversation",
                self.template.name,
            )
        return self.locality

    def checked(self, text: str, messages: list[Message], tools: Tools) -> str:
        """The text, if it is among the first compared with the whole rendering."""
        if not self.unchecked:
            return text
        self.unchecked -= 1
        whole = self.whole(messages, tools)
        if whole != text:
            self.locality = None
        return whole

    def start(self, messages: list[Message], tools: Tools) -> Start:
        new = Start(list(messages), list(tools))
        if any(message.tool_calls for message in messages):
            return new
        fields = ((m.role, m.content, m.hint, m.reasoning, m.name, m.tool_call_id) for m in messages)
        key = (repr(tools) if tools else "", *fields)
        start = self._starts.pop(key, None) or new
        self._starts[key] = start
        if len(self._starts) > MAX_STARTS:
            self._starts.popitem(last=False)
        return start

    def rule(self, start: Start, turns: list[Message], contents: list[str], old: int) -> Rule | None:
        """How a prompt continues whose latest `old` messages are the first of `turns`; None if that is not known."""
        kinds = zip(turns, contents, strict=True)
        kind = (old, *[(one.role, one.name, one.tool_call_id, bool(content)) for one, content in kinds])
        if kind not in start.rules:
            if len(start.rules) >= MAX_RULES:
                start.rules.clear()
            marked = [
                Message(role=one.role, content=text and _placeholder(i), name=one.name, tool_call_id=one.tool_call_id)
                for i, (one, text) in enumerate(zip(turns, contents, strict=True))
            ]
            try:
                before = self.whole([*start.messages, *marked[:old]], start.tools)
                after = self.whole([*start.messages, *marked], start.tools)
                start.rules[kind] = _difference(before, after, old)
            except RowError:
                start.rules[kind] = None
        return start.rules[kind]


class GrowingPrompt:
    """The prompts of one conversation, in the order in which it grows. Another order is right, but slower."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._messages: list[Message] = []
        self._tools: Tools = []
        self._text = ""
        self._start: Start | None = None
        self._first_reply: int | None = None
        self._alternates = False

    def prompt(self, messages: list[Message], tools: Tools) -> str:
        """The text that the model answers to, as `ChatTemplate.prompt` gives it."""
        known = len(self._messages)
        grows = 0 < known < len(messages) and messages[:known] == self._messages and tools == self._tools
        if grows:
            roles = [message.role == "assistant" for message in messages[known:]]
            self._alternates = self._alternates and roles == [True, False]
            text = self._continued(messages, known) if self._prompts.local() else None
        else:
            self._start = self._first_reply = None
            self._alternates = next(_replies(range(len(messages)), messages), None) is None
            text = self._first(messages, tools) if self._alternates and self._prompts.locality else None
        if text is None:
            text = self._prompts.whole(messages, tools)
        self._messages, self._tools, self._text = list(messages), list(tools), text
        return text

    def _first(self, messages: list[Message], tools: Tools) -> str:
        self._start = start = self._prompts.start(messages, tools)
        if start.text is None:
            start.text = self._prompts.whole(messages, tools)
        return start.text

    def _continued(self, messages: list[Message], known: int) -> str | None:
        """The text of `messages`, of which `known` were in the text before; None if the template must render it."""
        first = self._first_reply
        if first is None:
            first = self._first_reply = next(_replies(range(len(messages)), messages), 0)
        last = next(_replies(range(known - 1, first, -1), messages), min(first, known))
        turns = messages[last:]
        old = known - last
        # All turns have an observation, and the next begins with a reply.
        if first == 0 or old == 1 or turns[old].role != "assistant":
            return None
        if any(message.tool_calls or message.reasoning is not None for message in turns):
            return None
        local = self._prompts.locality
        if local is not None and local.parity and not self._alternates:
            return None
        newest = messages[known - 1]
        drops_thoughts = local is not None and local.drops_thoughts
        if drops_thoughts and not (is_question(newest) and is_question(messages[-1])):
            return None
        start = self._start = self._start or self._prompts.start(messages[:first], self._tools)
        contents = list(self._shown(turns, old, drops_thoughts))
        rule = self._prompts.rule(start, turns, contents, old)
        text = None if rule is None else self._applied(rule, newest, contents)
        # Without older turns the rule comes from the whole conversation, and a comparison would say nothing.
        return self._prompts.checked(text, messages, self._tools) if text is not None and first < last else text

    def _shown(self, turns: list[Message], old: int, drops_thoughts: bool) -> Iterator[str]:
        """The contents of `turns` as the template copies them. The first `old` only say whether they are empty."""
        escape = self._prompts.template.control.escape
        for number, message in enumerate(turns):
            text = message.content
            if number == len(turns) - 1:
                text += message.hint or ""
            if number >= old or drops_thoughts:
                text = escape(text, reply=_replied(message))
            yield without_thoughts(text) if drops_thoughts and _replied(message) else text

    def _applied(self, rule: Rule, newest: Message, contents: list[str]) -> str | None:
        """The text by a rule; `contents` are escaped."""
        escape = self._prompts.template.control.escape
        shown = now = ""
        if rule.newest is not None:
            shown = now = rule.newest.shows(escape(newest.content))
            if newest.hint:
                shown = rule.newest.shows(escape(newest.content + newest.hint))
        end = shown + rule.end
        if not self._text.endswith(end):
            return None
        written = [self._text[: len(self._text) - len(end)], now]
        for part in rule.parts:
            written.append(part if isinstance(part, str) else part.shows(contents[part.number]))
        return "".join(written)


def _difference(before: str, after: str, old: int) -> Rule | None:
    """The rule that makes `after` of `before`, in which the first `old` placeholders are."""
    holes = list(_holes(after))
    if old == 0:
        kept = min([common_prefix(before, after), *(begin for begin, _, _ in holes[:1])])
        return Rule(None, before[kept:], _parts(after, kept, holes))
    newest = [i for i, (_, _, hole) in enumerate(holes) if hole.number == old - 1]
    shown = list(_holes(before))
    if len(newest) != 1 or not shown or shown != holes[: newest[0] + 1]:
        return None
    later = holes[newest[0] + 1 :]
    _, end, hole = shown[-1]
    if before[:end] != after[:end] or any(one.number < old for _, _, one in later):
        return None
    return Rule(hole, before[end:], _parts(after, end, later))


def _parts(text: str, begin: int, holes: list[tuple[int, int, Hole]]) -> list[str | Hole]:
    parts: list[str | Hole] = []
    for start, end, hole in holes:
        parts += [text[begin:start], hole]
        begin = end
    return [*parts, text[begin:]]


def _holes(text: str) -> Iterator[tuple[int, int, Hole]]:
    """Where the placeholders are, with the spaces that are left around them."""
    for match in PLACEHOLDER.finditer(text):
        begin, end = match.span()
        left, right = text[begin - 1 : begin] == SPACE, text[end : end + 1] == SPACE
        yield begin - left, end + right, Hole(int(match[1]), left, right)


def _placeholder(number: int) -> str:
    return f"{SPACE}{NAME}{number}e{SPACE}"


def _replied(message: Message) -> bool:
    return message.role == "assistant"


def _replies(order: range, messages: list[Message]) -> Iterator[int]:
    return (i for i in order if _replied(messages[i]))
