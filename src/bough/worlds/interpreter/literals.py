"""Answers that are safe to give to a scorer that evaluates them: values and formulas only.

Answers are parsed, never run. An accepted answer calls only mathematical functions, uses no
attributes, and contains no name that is defined in the scorer.
"""

from __future__ import annotations

import ast
import re
from fractions import Fraction

FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "exp", "log", "ln", "sqrt", "erf", "Abs",
})  # fmt: skip
SYMBOLS = frozenset({"x", "y", "z", "X", "Y", "Z", "C", "E", "I", "pi"})
LARGEST_EXPONENT = 1000
_CHARACTERS = re.compile(r"[\w +\-*/().,]*", re.ASCII)
_WORD = re.compile(r"[A-Z]+")
_SHAPE = ast.BinOp | ast.UnaryOp | ast.Load | ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow | ast.USub | ast.UAdd


def is_text_or_literal(text: str) -> bool:
    """Whether `text` is a Python literal, not a Python expression at all, or one word in capital letters."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return True
    except (ValueError, RecursionError, MemoryError):
        return False
    try:
        ast.literal_eval(tree)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return _WORD.fullmatch(text.strip()) is not None
    return True


def is_polynomial(text: str) -> bool:
    """Whether `text` contains only numbers, variables, + - * / and **."""
    return is_expression(text, frozenset())


def is_expression(text: str, functions: frozenset[str] = FUNCTIONS) -> bool:
    """Whether `text` contains only numbers, variables, operators and mathematical functions."""
    tree = _parsed(text)
    return tree is not None and _calculates(tree, functions)


def is_arithmetic(text: str) -> bool:
    """Whether `text` contains only whole numbers, + - * / and parentheses."""
    return arithmetic(text) is not None


def arithmetic(text: str) -> tuple[Fraction, list[int]] | None:
    """The value of a calculation with whole numbers and the numbers in it; None for any other text."""
    tree = _parsed(text)
    if tree is None:
        return None
    numbers: list[int] = []
    try:
        return _value(tree, numbers), numbers
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def _parsed(text: str) -> ast.expr | None:
    if not _CHARACTERS.fullmatch(text):
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _calculates(tree: ast.expr, functions: frozenset[str]) -> bool:
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = [node.func for node in calls]
    powers = [node.right for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)]
    return (
        all(isinstance(function, ast.Name) and function.id in functions for function in called)
        and not any(call.keywords for call in calls)
        and all(node.id in SYMBOLS for node in nodes if isinstance(node, ast.Name) and node not in called)
        and all(type(node.value) in (int, float) for node in nodes if isinstance(node, ast.Constant))
        and all(isinstance(node, _SHAPE | ast.Call | ast.Name | ast.Constant) for node in nodes)
        and all(map(_small, powers))
    )


def _small(exponent: ast.expr) -> bool:
    """Whether a power is cheap to compute: no power in the exponent and no large numbers."""
    nodes = list(ast.walk(exponent))
    return not any(isinstance(node, ast.Pow) for node in nodes) and all(
        abs(node.value) <= LARGEST_EXPONENT
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    )


def _value(tree: ast.expr, numbers: list[int]) -> Fraction:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        numbers.append(tree.value)
        return Fraction(tree.value)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_value(tree.operand, numbers)
    if isinstance(tree, ast.BinOp):
        left, right = _value(tree.left, numbers), _value(tree.right, numbers)
        match tree.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
    raise ValueError("not a calculation with whole numbers")
