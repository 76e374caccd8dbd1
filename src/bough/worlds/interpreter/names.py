"""Which names in the tests are modules, and which the program has to define.

Runs in the tests' process, and in the host's, where it reads a task but runs nothing of it.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from symtable import SymbolTable, symtable
from types import ModuleType

# Modules outside the standard library that tests use, by the names they use.
MODULES = {"np": "numpy", "numpy": "numpy"}
# Importing them does something.
LOUD = {"antigravity", "this"}
# The words before a name that a problem asks for, what may stand between them, and between two such names.
ASKING = {
    "def", "class", "classes", "function", "functions", "method", "methods", "named", "called", "write", "implement",
    "define", "create", "complete",
}  # fmt: skip
BETWEEN = {"a", "an", "the", "python", "following"}
JOINING = {"and", "or", ",", "&", "-", "*"}
_TOKEN = re.compile(r"[^\W\d]\w*|\([^()]*\)|[^\s\w]")


def modules_used(sources: list[str], known: set[str]) -> dict[str, ModuleType | None]:
    """The modules that the tests use without importing them, by name; None for one that is not installed.

    Many tests count on the program to import `math`. They get Python's own: a program's
    would say itself what is close to what.
    """
    used: dict[str, set[str]] = {}
    for node in _nodes(sources):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, set()).add(node.attr)
    found: dict[str, ModuleType | None] = {}
    for name in sorted(used.keys() & _free(sources) - known):
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


def program_names(sources: list[str], entry: str | None, prelude: str, problem: str) -> tuple[list[str], list[str]]:
    """The names in the tests that the program has to define, and those that nothing defines.

    A program defines what its task asks for, by `entry` or in the text of the problem, and
    what the tests only give to it as arguments. It cannot take over what the task or Python
    defines, nor supply a name that the tests forgot to import, such as a comparison.

    Where a task without an entry asks for no name, the tests say which it is: the only one
    that nothing defines, or the first that each of them calls if they define all
    (`assert sum(10, 15) == 6`).
    """
    known = defined(prelude)
    used = _free(sources)
    free = used - {"candidate"}
    missing = free - set(vars(builtins)) - (known or set())
    missing -= modules_used(sources, set(vars(builtins)) | (known or set())).keys()
    own = entry_name(entry)
    asked = missing & {own, *_asked(problem)}
    if own in free and "candidate" not in used:
        asked.add(own)  # also where Python has the name
    if entry is None and not asked:
        functions = {name for name in missing if not name[0].isupper()} or missing
        asked = functions if len(functions) == 1 else set() if missing else _first_called(sources)
    given = {name for name in missing - asked if _is_given(name, sources, {*asked, "candidate"})}
    # What an import of everything defines can be known only where that module is.
    return sorted(asked | given), sorted(missing - asked - given) if known is not None else []


def entry_name(entry: str | None) -> str:
    """The name that an expression such as `Solution().f` begins with."""
    return (re.match(r"\w*", entry or "") or [""])[0]


def defined(code: str) -> set[str] | None:
    """The global names that code defines; None if it imports everything of a module that is not Python's own."""
    found = {
        symbol.get_name()
        for symbol in symtable(code, "<prelude>", "exec").get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            module = node.module or ""
            if module.partition(".")[0] not in sys.stdlib_module_names - LOUD:
                return None
            content = vars(import_module(module))
            found |= set(content.get("__all__", [name for name in content if not name.startswith("_")]))
    return found


def attributes_set(sources: list[str]) -> set[str]:
    """The attributes that code assigns, of whatever object."""
    nodes = _nodes(sources)
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


def _free(sources: list[str]) -> set[str]:
    """The global names that statements use and do not define."""
    tables = [symtable(source, "<test>", "exec") for source in sources]
    used = {name for table in tables for name in _globals(table)}
    return used - {name for source in sources for name in defined(source) or set()}


def _globals(table: SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _globals(inner)


def _asked(problem: str) -> set[str]:
    """The words that a text asks for: after "function", "class", "write" and the like, also several in a row."""
    found = set()
    open_ = next_ = False
    for part in _TOKEN.findall(problem):
        word = part.lower()
        if word in ASKING:
            open_ = next_ = True
        elif word in JOINING:
            next_ = True
        elif word == ".":
            open_ = False
        elif open_ and word.isidentifier() and word not in BETWEEN:
            if next_:
                found.add(part)
            open_, next_ = next_, False
    return found


def _is_given(name: str, sources: list[str], functions: set[str]) -> bool:
    """Whether the tests use a name in the arguments of these functions only: it is then the program's own affair."""
    nodes = _nodes(sources)
    calls = [node for node in nodes if isinstance(node, ast.Call) and _root(node.func) in functions]
    arguments = [part for call in calls for part in (*call.args, *(word.value for word in call.keywords))]
    inside = {id(node) for part in arguments for node in ast.walk(part)}
    return all(id(node) in inside for node in nodes if isinstance(node, ast.Name) and node.id == name)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def _first_called(sources: list[str]) -> set[str]:
    """The function that is the first in every assertion; nothing where they differ."""
    names = {_first_call(node) for node in _nodes(sources) if isinstance(node, ast.Assert)}
    return names if len(names) == 1 else set()


def _first_call(node: ast.Assert) -> str:
    calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)]
    first = min(calls, key=lambda call: (call.lineno, call.col_offset), default=None)
    return _root(first.func) if first is not None else ""


def _nodes(sources: list[str]) -> list[ast.AST]:
    return [node for source in sources for node in ast.walk(ast.parse(source))]
