"""Small changes to a module's source, each of which a good test should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "all": "any", "any": "all"}
DROPPED = {"abs", "detach", "clamp", "relu", "float", "sorted"}  # the value itself instead


@dataclass(frozen=True)
class Mutant:
    """One change, and the module's whole source with it."""

    line: int
    old: str
    new: str
    source: str

    @property
    def changed_line(self) -> str:
        """The line where the change begins, as it is then; the new expression is in parentheses."""
        return self.source.splitlines()[self.line - 1].strip()

    def __str__(self) -> str:
        return f"`{self.old}` → `{self.new}`"


def mutants(source: str) -> list[Mutant]:
    """Every change to this source that we know of, in the order of its lines."""
    found = []
    for node, replacement in _changes(ast.parse(source)):
        old, new = ast.get_source_segment(source, node) or "", ast.unparse(replacement)
        found.append(Mutant(node.lineno, " ".join(old.split()), new, _replaced(source, node, f"({new})")))
    return found


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in _code(tree):
        match node:
            case ast.Compare(ops=[op], left=left, comparators=right) if type(op) in COMPARISONS:
                yield node, ast.Compare(left, [COMPARISONS[type(op)]()], right)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in ARITHMETIC:
                yield node, ast.BinOp(left, ARITHMETIC[type(op)](), right)
            case ast.BoolOp(op=op, values=values):
                yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield node, operand
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield node, ast.IfExp(test, orelse, body)
            case ast.Constant(value=bool() as value):
                yield node, ast.Constant(not value)
            case ast.Constant(value=int() | float() as value):
                yield node, ast.Constant(value + 1)
                yield node, ast.Constant(value - 1)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in OPPOSITES:
                yield node, ast.Call(ast.Name(OPPOSITES[name]), args, keywords)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=args, keywords=keywords) if (
                name in OPPOSITES
            ):
                yield node, ast.Call(ast.Attribute(value, OPPOSITES[name]), args, keywords)
            case ast.Call(func=ast.Name(id=name), args=[value, *_]) if name in DROPPED:
                yield node, value
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in DROPPED:
                yield node, value
            case ast.Return(value=ast.Call(args=[first, *_]) as value) if not isinstance(first, ast.Starred):
                yield value, first
            case ast.If(test=test) | ast.While(test=test):
                yield test, ast.UnaryOp(ast.Not(), test)


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute something: no annotations, docstrings, messages and assertions, such as zip's `strict`."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "type_params", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                yield child
                yield from _code(child)


def _replaced(source: str, node: ast.expr, text: str) -> str:
    """The source with other text in place of a node; positions count bytes."""
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None and node.end_col_offset is not None
    before, after = lines[node.lineno - 1][: node.col_offset], lines[node.end_lineno - 1][node.end_col_offset :]
    return b"".join([*lines[: node.lineno - 1], before, text.encode(), after, *lines[node.end_lineno :]]).decode()
