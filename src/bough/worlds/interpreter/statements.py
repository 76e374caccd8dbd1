"""Reads the tests of a program without running them: what counts, and whose names and values they use.

Runs in the host's process, where it runs nothing of a task, and in the tests' process.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Collection, Iterator
from importlib import import_module
from symtable import SymbolTable, symtable
from types import ModuleType
from typing import NamedTuple

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
# Calls that name an exception first.
EXPECTING = {"assertraises", "raises", "suppress", "assert_raises"}
_TOKEN = re.compile(r"[^\W\d]\w*|\([^()]*\)|[^\s\w]")


def split(tests: str | list[str]) -> list[str]:
    """Tests one by one. A function `check(candidate)`, as HumanEval has it, is the statements of its body."""
    sources = []
    for text in [tests] if isinstance(tests, str) else tests:
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "check":
                sources += [ast.unparse(part) for part in statement.body]
            else:
                sources.append(ast.unparse(statement))
    # HumanEval ends by calling its own function.
    return [source for source in sources if not re.fullmatch(r"check\(\w+\)", source)]


def marked(sources: list[str]) -> list[tuple[str, bool]]:
    """Statements, each with whether it is a test and not what a test needs.

    A test asserts, or calls a function of the tests' that does.
    """
    trees = [ast.parse(source).body for source in sources]
    asserting: set[str] = set()
    functions = [part for body in trees for part in body if isinstance(part, ast.FunctionDef)]
    while more := {part.name for part in functions if _asserts(part, asserting)} - asserting:
        asserting |= more
    definitions = ast.FunctionDef | ast.ClassDef
    return [
        (source, any(_asserts(part, asserting) for part in body if not isinstance(part, definitions)))
        for source, body in zip(sources, trees, strict=True)
    ]


def _asserts(part: ast.stmt, functions: set[str]) -> bool:
    called = [called_name(node) for node in ast.walk(part) if isinstance(node, ast.Call)]
    asserts = any(isinstance(node, ast.Assert) for node in ast.walk(part))
    return asserts or any(name in functions or name.startswith("assert") for name in called)


def called_name(call: ast.Call) -> str:
    """The last name of what is called: `f` of `f()` and of `a.f()`."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


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
    # What the tests only give to the program in its arguments is the program's own affair.
    nodes = _nodes(sources)
    calls = [node for node in nodes if isinstance(node, ast.Call) and root(node.func) in {*asked, "candidate"}]
    arguments = [part for call in calls for part in (*call.args, *(word.value for word in call.keywords))]
    inside = {id(node) for part in arguments for node in ast.walk(part)}
    outside = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in inside}
    given = missing - asked - outside
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


def exceptions_expected(sources: list[str]) -> set[str]:
    """The names in `except` clauses, and in calls such as assertRaises(…)."""
    nodes = _nodes(sources)
    caught = [node.type for node in nodes if isinstance(node, ast.ExceptHandler) and node.type is not None]
    calls = [node for node in nodes if isinstance(node, ast.Call) and called_name(node).lower() in EXPECTING]
    caught += [part for call in calls for part in call.args[:1]]
    return {name.id for part in caught for name in _names(part)}


def bounds_read(sources: list[str]) -> set[tuple[str, str]]:
    """The pairs of names in parts such as `values[:k]`."""
    parts = [(node, node.slice) for node in _nodes(sources) if isinstance(node, ast.Subscript)]
    return {(root(node), getattr(part.upper, "id", "")) for node, part in parts if isinstance(part, ast.Slice)}


class Origins(NamedTuple):
    """The names in statements that stand for values of the program's, that may, and of arguments given to these."""

    surely: set[str]
    maybe: set[str]
    given: set[str]


def origins(sources: list[str], names: Collection[str]) -> Origins:
    """Where values come from, if `names` are the program's.

    Assignments are followed as if each ran before and after every other one, and a parameter
    may be anything: a name too many makes the tests stricter, not weaker.
    """
    nodes = _nodes(sources)
    flows = [(name, value) for node in nodes for names, value in _flows(node) for name in names]
    bound = {name for name, _ in flows}
    # What a method is given goes into its object: found.append(f(1)). A module is not bound here.
    methods = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    flows += [(root(call.func), part) for call in methods for part in call.args if root(call.func) in bound]
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    maybe = {*names, *parameters}
    while more := {name for name, value in flows if uses(value, maybe)} - maybe:
        maybe |= more
    surely = set(names) - parameters
    while more := bound - {name for name, value in flows if root(value) not in surely} - surely - parameters:
        surely |= more
    calls = [node for node in nodes if isinstance(node, ast.Call) and uses(node.func, maybe)]
    given = {name.id for call in calls for part in (*call.args, *call.keywords) for name in _names(part)}
    return Origins(surely, maybe, given - maybe)


def uses(node: ast.AST, names: Collection[str]) -> bool:
    """Whether one of the names is in an expression."""
    return any(name.id in names for name in _names(node))


def _flows(node: ast.AST) -> Iterator[tuple[list[str], ast.AST]]:
    """Names, and what they get a value from."""
    if isinstance(node, ast.Assign):
        yield [name for target in node.targets for name in _bound(target)], node.value
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield _bound(node.target), node.value
    elif isinstance(node, ast.For | ast.comprehension):
        yield _bound(node.target), node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield _bound(node.optional_vars), node.context_expr
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield [node.name], node
    elif isinstance(node, ast.Try):
        yield [handler.name or "" for handler in node.handlers], node
    elif isinstance(node, ast.Match):
        patterns = [part for part in ast.walk(node) if isinstance(part, ast.MatchAs | ast.MatchStar)]
        yield [part.name or "" for part in patterns], node.subject


def _bound(target: ast.expr) -> list[str]:
    """The names that an assignment changes."""
    return [name.id for name in _names(target) if isinstance(name.ctx, ast.Store)] or [root(target)]


def _names(node: ast.AST) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]


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


def root(node: ast.AST) -> str:
    """The name that an expression such as `a.b[0].c()` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _first_called(sources: list[str]) -> set[str]:
    """The function that is the first in every assertion; nothing where they differ."""
    names = set()
    for node in _nodes(sources):
        if isinstance(node, ast.Assert):
            calls = [part for part in ast.walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)]
            first = min(calls, key=lambda call: (call.lineno, call.col_offset), default=None)
            names.add(root(first.func) if first is not None else "")
    return names if len(names) == 1 else set()


def _nodes(sources: list[str]) -> list[ast.AST]:
    return [node for source in sources for node in ast.walk(ast.parse(source))]
