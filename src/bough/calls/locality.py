"""Whether a chat template renders each message by itself: a proof from the template's source.

A local template is a head, one loop over the messages and a tail. What the loop writes for a
message depends on the fields of that message and of its two neighbours, on whether it is the
first or the last, and on the head's variables. Contents are only copied into the text, or
trimmed and copied. So a conversation that grows keeps its text up to the last old message,
and what follows depends on the last two turns alone (`bough.calls.growing`).

Whatever is not known to be harmless makes a template non-local: Mistral's, which moves the
tools to the last message; one that prints the number of messages or the time. Qwen3's, which
drops the thoughts of older replies, is local for conversations that end with a question
(`bough.calls.thoughts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes

from bough.calls.thoughts import reduce_template

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
