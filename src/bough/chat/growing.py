"""The prompts of an episode, each made from the one before: only what is new is written.

For a local template (`bough.chat.growing`) the text after the last old message depends on the
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes

from bough.chat.template import ChatTemplate
from bough.data.bough import common_prefix
from bough.errors import RowError
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
        if self.unchecked <= 0:
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
        try:
            return start.rules[kind]  # in one step: a large prompt is made in another thread
        except KeyError:
            if len(start.rules) >= MAX_RULES:
                start.rules.clear()
            marked = [
                Message(role=one.role, content=text and _placeholder(i), name=one.name, tool_call_id=one.tool_call_id)
                for i, (one, text) in enumerate(zip(turns, contents, strict=True))
            ]
            try:
                before = self.whole([*start.messages, *marked[:old]], start.tools)
                after = self.whole([*start.messages, *marked], start.tools)
                rule = _difference(before, after, old)
            except RowError:
                rule = None
            start.rules[kind] = rule
            return rule


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


# Whether a chat template renders each message by itself: a proof from the template's source.
# A local template is a head, one loop over the messages and a tail. What the loop writes for a message depends on the
# fields of that message and of its two neighbours, on whether it is the first or the last, and on the head's
# variables. Contents are only copied into the text, or trimmed and copied. So a conversation that grows keeps its
# text up to the last old message, and what follows depends on the last two turns alone (`bough.chat.growing`).
# Whatever is not known to be harmless makes a template non-local: Mistral's, which moves the tools to the last
# message; one that prints the number of messages or the time. Qwen3's, which drops the thoughts of older replies, is
# local for conversations that end with a question (`bough.chat.growing`).

# Names whose value may differ between two renderings, or that carry state from message to message.
IMPURE = frozenset({"strftime_now", "cycler", "joiner", "lipsum", "self", "super", "caller", "varargs", "kwargs"})
# Tests that ask for the type of a value only: a content is always a string.
TYPE_TESTS = frozenset({"string", "defined", "undefined", "none", "mapping", "iterable", "sequence", "number"})
# Expressions that are local where their parts are.
PLAIN = (
    nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Slice, nodes.Operand, nodes.Neg, nodes.Pos,
    nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Compare, nodes.Test, nodes.Filter,
    nodes.Call, nodes.Getattr, nodes.Getitem,
)  # fmt: skip


@dataclass(frozen=True)
class Locality:
    """`parity`: the template also asks whether the index of a message is even.

    `drops_thoughts`: what is said of it holds for prompts that end with a question, and for replies without thoughts.
    """

    parity: bool
    drops_thoughts: bool = False


@lru_cache(maxsize=64)
def locality(source: str) -> Locality | None:
    """The proof for a template; None if there is none."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # noqa: S701  only parses
    try:
        template = environment.parse(source)
        drops_thoughts = reduce_template(template)
        return Locality(_Proof(template).parity, drops_thoughts)
    except (_NotLocalError, TemplateError, RecursionError):
        return None


class Content(IntEnum):
    """How a value holds the content of the message."""

    NONE = 0
    WHOLE = 1  # nothing else: whether the value is empty is known from the content
    INSIDE = 2


class Place(IntEnum):
    HEAD = 0
    LOOP = 1  # in the loop over the messages
    INNER = 2  # in any other loop
    MACRO = 3
    TAIL = 4


class _NotLocalError(Exception):
    pass


def _refuse() -> NoReturn:
    raise _NotLocalError


class _Proof:
    """Walks through a template and raises at the first thing that is not known to be local."""

    def __init__(self, template: nodes.Template) -> None:
        self.parity = False
        self.lists = {"messages"}  # names of the conversation, also without its first messages
        self.whole = {"messages"}  # those of them that start with its first message
        self.contents: dict[str, Content] = {}
        self.looped = self.message = ""
        self.not_first = False
        place = Place.HEAD
        for node in template.body:
            if place is Place.HEAD and isinstance(node, nodes.For) and self.left_out(node.iter) is not None:
                self.main_loop(node)
                place = Place.TAIL
            else:
                self.statement(node, place)
        if place is Place.HEAD:
            _refuse()

    # Statements

    def main_loop(self, loop: nodes.For) -> None:
        if loop.test or loop.else_ or loop.recursive or not isinstance(loop.target, nodes.Name):
            _refuse()
        self.message = loop.target.name
        self.looped = loop.iter.name if isinstance(loop.iter, nodes.Name) else ""
        if self.message in self.lists:
            _refuse()
        known = None
        while known != self.contents:  # until it is settled which names hold a content
            known = dict(self.contents)
            self.statements(loop.body, Place.LOOP)
        self.looped = self.message = ""
        self.contents = {}

    def statements(self, body: Iterable[nodes.Node], place: Place) -> None:
        for node in body:
            self.statement(node, place)

    def statement(self, node: nodes.Node, place: Place) -> None:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    self.value(part, place)
            case nodes.If():
                self.truth(node.test, place)
                self.statements([*node.body, *node.elif_, *node.else_], place)
            case nodes.Assign():
                self.assign(node, place)
            case nodes.For():
                self.inner_loop(node, place)
            case nodes.Macro() if place is Place.HEAD:
                self.plain(node.defaults, Place.MACRO)
                self.statements(node.body, Place.MACRO)
            case nodes.Continue():
                pass
            case _:
                _refuse()

    def assign(self, node: nodes.Assign, place: Place) -> None:
        target, left_out = node.target, self.left_out(node.node)
        if isinstance(target, nodes.NSRef) and place in (Place.HEAD, Place.TAIL):
            self.plain([node.node], place)  # elsewhere it carries something from message to message
        elif not isinstance(target, nodes.Name) or target.name in (self.message, "loop"):
            _refuse()
        elif place is Place.HEAD and left_out is not None:
            if left_out:
                self.whole.discard(target.name)
            elif target.name not in self.lists:
                self.whole.add(target.name)
            self.lists.add(target.name)
        elif target.name in self.lists:
            _refuse()
        else:
            held = self.value(node.node, place)
            self.contents[target.name] = max(held, self.contents.get(target.name, held))

    def inner_loop(self, node: nodes.For, place: Place) -> None:
        names = {name.name for name in (node.target, *node.target.find_all(nodes.Name)) if isinstance(name, nodes.Name)}
        if node.recursive or names & {*self.lists, self.message, "loop"}:
            _refuse()
        self.plain([node.iter], place)
        if node.test is not None:
            self.truth(node.test, Place.INNER)
        self.statements([*node.body, *node.else_], Place.INNER)

    # Expressions

    def truth(self, node: nodes.Node, place: Place) -> None:
        """An expression that is asked whether it holds. Of a content that says whether it is empty."""
        if not self.other_message(node, place) and self.value(node, place) is Content.INSIDE:
            _refuse()

    def plain(self, parts: Iterable[nodes.Node], place: Place) -> None:
        """Expressions that hold no content."""
        for part in parts:
            if self.value(part, place) is not Content.NONE:
                _refuse()

    def value(self, node: Any, place: Place) -> Content:
        """How the value of an expression holds the content of the message."""
        match node:
            case nodes.Const() | nodes.TemplateData():
                return Content.NONE
            case nodes.Name():
                if node.name in {*self.lists, *IMPURE, self.message, "loop"}:
                    _refuse()
                return self.contents.get(node.name, Content.NONE)
            case nodes.Add() | nodes.Concat():
                parts = node.nodes if isinstance(node, nodes.Concat) else [node.left, node.right]
                held = max(self.value(part, place) for part in parts)
                return Content.INSIDE if held else Content.NONE
            case nodes.And() | nodes.Or():
                return self.either(node, place)
            case nodes.Not():
                self.truth(node.node, place)
                return Content.NONE
            case nodes.CondExpr():
                self.truth(node.test, place)
                return max(self.value(part, place) for part in (node.expr1, node.expr2) if part is not None)
            case nodes.Filter(name="trim", args=[], kwargs=[], dyn_args=None, dyn_kwargs=None) if node.node is not None:
                if (held := self.value(node.node, place)) is Content.INSIDE:
                    _refuse()  # trimming a longer text hides where the content's own spaces went
                return Content.INSIDE if held else Content.NONE
            case nodes.Test() if node.name in TYPE_TESTS and not node.args:
                if not (self.is_message(node.node) or self.other_message(node.node, place)):
                    self.value(node.node, place)
                return Content.NONE
        return self.access(node, place)

    def either(self, node: nodes.And | nodes.Or, place: Place) -> Content:
        self.truth(node.left, place)
        presence = isinstance(node, nodes.And) and self.other_message(node.left, place)
        left = Content.NONE if presence else self.value(node.left, place)
        asked = node.left.node if isinstance(node, nodes.And) and isinstance(node.left, nodes.Not) else node.left
        negated = asked is not node.left
        before, self.not_first = (
            self.not_first,
            self.not_first
            or (place is Place.LOOP and negated == isinstance(node, nodes.And) and self.asks_first(asked)),
        )
        right = self.value(node.right, place)
        self.not_first = before
        return max(left, right)

    def access(self, node: nodes.Node, place: Place) -> Content:
        """Attributes, items, calls, filters, tests, comparisons and arithmetic."""
        if isinstance(node, nodes.Getattr | nodes.Getitem):
            key = node.attr if isinstance(node, nodes.Getattr) else _constant(node.arg)
            if isinstance(node.node, nodes.Name) and node.node.name == "loop":
                return Content.NONE if place is Place.INNER or self.asks_first(node, "last") else _refuse()
            if self.is_message(node.node):
                if not isinstance(key, str) or key in ("get", "items", "keys", "values", "copy"):
                    _refuse()
                return Content.WHOLE if key == "content" else Content.NONE
            if self.other_message(node.node, place) and isinstance(key, str) and key in ("role", "tool_calls", "name"):
                return Content.NONE
            if self.item(node, 0) and node.node.name in self.whole and place is not Place.MACRO:  # type: ignore[attr-defined]
                return Content.NONE
        if place is Place.LOOP and (self.asks_first(node) or self.asks_parity(node)):
            return Content.NONE
        if isinstance(node, nodes.Compare) and self.asks_for_field(node):
            return Content.NONE
        if not isinstance(node, PLAIN) or (isinstance(node, nodes.Filter) and node.name == "random"):
            _refuse()
        self.plain(node.iter_child_nodes(), place)
        return Content.NONE

    # What an expression is

    def is_message(self, node: nodes.Node) -> bool:
        return isinstance(node, nodes.Name) and node.name == self.message != ""

    def other_message(self, node: nodes.Node, place: Place) -> bool:
        """A neighbour of the message, or in the tail the last message."""
        if place is Place.TAIL:
            return self.item(node, -1)
        if place is not Place.LOOP:
            return False
        # For the first message, `messages[loop.index0 - 1]` is the last one.
        neighbours = [1, -1] if self.not_first else [1]
        return _of_loop(node, "previtem", "nextitem") or any(self.neighbour(node, step) for step in neighbours)

    def neighbour(self, node: nodes.Node, distance: int) -> bool:
        """`messages[loop.index0 + 1]` of the list that the loop iterates over."""
        if not (
            isinstance(node, nodes.Getitem) and isinstance(node.node, nodes.Name) and self.looped == node.node.name
        ):
            return False
        step = node.arg
        if not isinstance(step, nodes.Add | nodes.Sub) or not _of_loop(step.left, "index0"):
            return False
        return bool(_constant(step.right) == (distance if isinstance(step, nodes.Add) else -distance))

    def item(self, node: nodes.Node, index: int) -> bool:
        """`messages[index]`"""
        if not (isinstance(node, nodes.Getitem) and isinstance(node.node, nodes.Name) and node.node.name in self.lists):
            return False
        return bool(_constant(node.arg) == index)

    def asks_first(self, node: nodes.Node, *others: str) -> bool:
        """`loop.first`, `loop.index0 == 0` and the like."""
        if isinstance(node, nodes.Compare) and len(node.ops) == 1 and node.ops[0].op == "eq":
            number = _constant(node.ops[0].expr)
            return (_of_loop(node.expr, "index0") and number == 0) or (_of_loop(node.expr, "index") and number == 1)
        return _of_loop(node, "first", *others)

    def asks_parity(self, node: nodes.Node) -> bool:
        asks = isinstance(node, nodes.Mod) and _constant(node.right) == 2 and _of_loop(node.left, "index0", "index")
        self.parity = self.parity or asks
        return asks

    def asks_for_field(self, node: nodes.Compare) -> bool:
        """`'tool_calls' in message`"""
        op = node.ops[0]
        membership = len(node.ops) == 1 and op.op in ("in", "notin") and self.is_message(op.expr)
        return membership and isinstance(node.expr, nodes.Const)

    def left_out(self, node: nodes.Node) -> int | None:
        """For `messages` and `messages[1:]`, how many messages are left out at most; None for anything else."""
        if isinstance(node, nodes.Name) and node.name in self.lists:
            return int(node.name not in self.whole)
        if isinstance(node, nodes.Getitem) and isinstance(node.node, nodes.Name) and node.node.name in self.lists:
            cut = node.arg
            if isinstance(cut, nodes.Slice) and cut.stop is None and cut.step is None:
                return 1 if _constant(cut.start) == 1 and node.node.name in self.whole else None
        return None


def _constant(node: Any) -> Any:
    if isinstance(node, nodes.Neg) and isinstance(node.node, nodes.Const):
        return -node.node.value
    return node.value if isinstance(node, nodes.Const) else None


def _of_loop(node: Any, *names: str) -> bool:
    """Whether an expression is one of these attributes of `loop`."""
    if not (isinstance(node, nodes.Getattr | nodes.Getitem) and isinstance(node.node, nodes.Name)):
        return False
    key = node.attr if isinstance(node, nodes.Getattr) else _constant(node.arg)
    return node.node.name == "loop" and key in names


# Chat templates that drop the thoughts of older replies (Qwen3), reduced to ones that do not.
# Such a template looks for the last question: a user's message that is not a tool result. Replies before it lose
# their text up to `</think>`, later ones keep it. So if a conversation ends with a question, all of its replies lose
# their thoughts, and the template writes the same text as one without this search, given replies from which the
# thoughts are removed (`without_thoughts`).
# The search and the removal are known by their statements; a template that has them in another form, or uses what
# they find elsewhere, is not reduced.

END = "</think>"
_SEARCH = """
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and IS_TEXT not(
        message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}"""
# Branches that no reply takes.
_NO_REPLY = (
    "(message.role == 'user') or (message.role == 'system' and not loop.first)",
    *("message.role == 'user'", "message.role == 'system'", "message.role == 'tool'"),
)


def _parsed(source: str) -> list[nodes.Node]:
    return Environment().parse(source).body  # noqa: S701  only parses


def _expression(source: str) -> nodes.Node:
    [output] = _parsed("{{ " + source + " }}")
    assert isinstance(output, nodes.Output)
    return output.nodes[0]


SEARCHES = [_parsed(_SEARCH.replace("IS_TEXT", form)) for form in ("message.content is string and", "")]
AFTER_QUESTION = _expression("loop.index0 > ns.last_query_index")
NO_REPLY = [_expression(source) for source in _NO_REPLY]
CONTENT = _expression("message.content")
# What the thoughts are removed from, with the test for them and the rest.
REMOVALS = [
    (_expression(f"'{END}' in {name}"), _expression(f"{name}.split('{END}')[-1].lstrip('\\n')"))
    for name in ("content", "message.content")
]


def without_thoughts(reply: str) -> str:
    """What such a template shows of an older reply."""
    return reply.split(END)[-1].lstrip("\n") if END in reply else reply


def is_question(message: Message) -> bool:
    """Whether the search surely stops at this message."""
    return message.role == "user" and "tool_response>" not in message.content + (message.hint or "")


def reduce_template(template: nodes.Template) -> bool:
    """Takes search and removal out of a template; False if it does not have them, and then it is as it was."""
    place = next((i for i in range(len(template.body)) if template.body[i : i + 2] in SEARCHES), None)
    if place is None:
        return False
    before = list(template.body)
    template.body[place : place + 2] = []
    template.body = _reduced(template.body)
    if _still_used(template):
        template.body = before
        return False
    return True


def _reduced(body: list[nodes.Node]) -> list[nodes.Node]:
    """The statements without what is only done after the last question, and without the removal of thoughts."""
    found: list[nodes.Node] = []
    for node in body:
        if isinstance(node, nodes.If) and node.test == AFTER_QUESTION and not node.elif_:
            found += _reduced(node.else_)
        elif not _removes_thoughts(node):
            found.append(_with_reduced_parts(node))
    return found


def _with_reduced_parts(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.If):
        elif_ = [nodes.If(each.test, _reduced(each.body), [], []) for each in node.elif_]
        return nodes.If(node.test, _reduced(node.body), elif_, _reduced(node.else_))
    if isinstance(node, nodes.For):
        return nodes.For(node.target, node.iter, _reduced(node.body), node.else_, node.test, node.recursive)
    return node


def _removes_thoughts(node: nodes.Node) -> bool:
    """`{% if '</think>' in content %}` with nothing but the thoughts and the rest being set."""
    if not isinstance(node, nodes.If) or node.elif_ or node.else_:
        return False
    for test, rest in REMOVALS:
        if node.test == test:
            values = [(_set(each), each.node) for each in node.body if isinstance(each, nodes.Assign)]
            contents = [value for name, value in values if name == "content"]
            names = {name for name, _ in values}
            return len(values) == len(node.body) and contents == [rest] and names <= {"content", "reasoning_content"}
    return False


def _still_used(template: nodes.Template) -> bool:
    """Whether what was taken out matters elsewhere: then the reduced template would write something else."""
    found = {name.name for name in template.find_all(nodes.Name) if name.ctx == "load"}
    if found & {"ns", "reasoning_content"} or any(template.find_all(nodes.NSRef)):
        return True
    assigned = [each.node for each in template.find_all(nodes.Assign) if _set(each) == "content"]
    if any(value not in (CONTENT, nodes.Const("")) for value in assigned):
        return True
    return any(_contents_of_replies(template.body))


def _contents_of_replies(body: list[nodes.Node]) -> Iterator[nodes.Node]:
    """Where the content of a reply may be used as it is, with its thoughts."""
    for node in body:
        match node:
            case nodes.Assign() if node.node == CONTENT and _set(node) == "content":
                pass
            case nodes.If():
                branches = [(node.test, node.body), *((each.test, each.body) for each in node.elif_)]
                for test, inner in branches:
                    if test not in NO_REPLY:
                        yield from _used(test)
                        yield from _contents_of_replies(inner)
                yield from _contents_of_replies(node.else_)
            case nodes.For():
                yield from _used(node.iter)
                yield from _contents_of_replies(node.body)
            case _:
                yield from _used(node)


def _used(node: nodes.Node) -> Iterator[nodes.Node]:
    if isinstance(node, nodes.Test) and node.name == "string":
        return
    if node == CONTENT:
        yield node
    for child in node.iter_child_nodes():
        yield from _used(child)


def _set(node: nodes.Assign) -> str | None:
    return node.target.name if isinstance(node.target, nodes.Name) else None
