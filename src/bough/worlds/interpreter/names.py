"""Which names in the tests are modules, and which the program has to define. Runs in the tests' process."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from importlib import import_module
from types import ModuleType

# Modules outside the standard library that tests use, by the names they use.
MODULES = {"np": "numpy", "numpy": "numpy"}


def modules_used(sources: list[str], known: set[str]) -> dict[str, ModuleType | None]:
    """The modules that the tests use without importing them, by name; None for one that is not installed.

    Many tests count on the program to import `math`. They get Python's own: a program's
    would say itself what is close to what.
    """
    trees = [ast.parse(source) for source in sources]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, set()).add(node.attr)
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    found: dict[str, ModuleType | None] = {}
    for name in used.keys() - known - stored - _defined(trees) - {"candidate"}:
        module = MODULES.get(name, name)
        if module not in sys.stdlib_module_names and name not in MODULES:
            continue
        try:
            imported = import_module(module)
        except ImportError:
            found[name] = None
            continue
        if all(hasattr(imported, attribute) for attribute in used[name]):
            found[name] = imported
    return found


def program_names(sources: list[str], entry: str | None, known: set[str]) -> list[str]:
    """The names in the tests that the program has to define, because nothing else does.

    A program cannot take over what the task or Python defines, such as `abs` or a
    comparison of the task's. Where nothing is left, the tests of a function that is
    named like one of Python's (`assert sum(10, 15) == 6`) say which it is: the first
    that each of them calls.
    """
    trees = [ast.parse(source) for source in sources]
    names = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | _defined(trees)
    used = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Load))
    own = entry is not None and re.match(r"\w+", entry)
    free = [name for name in used if name not in known | defined | set(vars(builtins)) and name != "candidate"]
    if own and own[0] in used and own[0] not in {*free, *defined}:
        free.append(own[0])
    if free or entry is not None:
        return free
    asserts = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    first = {_first_call(node) for node in asserts}
    return [name for name in first if name is not None] if len(first) == 1 else []


def _defined(trees: list[ast.Module]) -> set[str]:
    found = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                found.add(node.name)
    return found


def _first_call(node: ast.Assert) -> str | None:
    calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)]
    first = min(calls, key=lambda call: (call.lineno, call.col_offset), default=None)
    return first.func.id if first is not None and isinstance(first.func, ast.Name) else None
