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
    """One change, and the module's whole source with it.

    `changed_line` is the line where the change begins, as it is then; the new expression is in parentheses.
    """

    line: int
    old: str
    new: str
    changed_line: str
    source: str

    def __str__(self) -> str:
        return f"`{self.old}` → `{self.new}`"


def mutants(source: str) -> list[Mutant]:
    """Every change to this source that we know of, in the order of its lines."""
    lines = source.encode().splitlines(keepends=True)  # positions count bytes
    return [_mutant(lines, node, ast.unparse(replacement)) for node, replacement in _changes(ast.parse(source))]


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
    """The nodes that compute something: no annotations, docstrings, messages and assertions."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "type_params", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if _is_no_computation(child):
                continue
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                yield child
                yield from _code(child)


def _is_no_computation(node: object) -> bool:
    """zip's `strict`, which is an assertion; imports for types; defaults and bounds of settings."""
    match node:
        case ast.keyword(arg="strict") | ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name == "Field" or name.endswith("_field")
    return False


def _mutant(lines: list[bytes], node: ast.expr, new: str) -> Mutant:
    assert node.end_lineno is not None and node.end_col_offset is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    inside = b"".join(lines[first : last + 1])
    old = inside[len(before) : len(inside) - len(after)].decode()
    changed = before + f"({new})".encode() + after
    source = b"".join([*lines[:first], changed, *lines[last + 1 :]]).decode()
    return Mutant(node.lineno, " ".join(old.split()), new, changed.decode().strip(), source)
