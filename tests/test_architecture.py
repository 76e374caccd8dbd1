"""The house rules that a machine can check."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "bough"
# The rooms in their order: a module imports only from its own room and those before it.
ROOMS = [
    "types", "errors", "ledger", "files", "event_loop", "bit_exact", "config", "commands.table", "terminal", "data",
    "sandbox", "models", "chat", "trees", "policy", "training", "engines", "environments", "worlds", "rollouts",
    "curation", "evaluation", "online", "commands.objects", "commands.models", "methods", "recipes", "experiments",
    "report", "commands", "cli",
]  # fmt: skip
PLACE = {name: number for number, name in enumerate(ROOMS)}


def modules() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem not in ("__init__", "__main__")]


def room_of(module: str) -> str:
    """The room of a module, given by its name without `bough.`.

    The table of commands, and what their functions take in place of names, are rooms of their own.
    """
    return module if module in PLACE else module.split(".")[0]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


class Said(NamedTuple):
    """What a module says: its docstring, and whole names of modules of Bough that it imports from."""

    docstring: str | None
    imports: frozenset[str]


def _is_module(name: str) -> bool:
    place = SOURCE.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or place.is_dir()


@cache  # several tests ask, and parsing everything takes seconds
def said(path: Path) -> Said:
    tree = ast.parse(path.read_text())
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bough"):
            # `from bough.commands import table` imports a module, `from bough.errors import InputError` does not.
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            modules_inside = {name for name in inside if _is_module(name)}
            names |= modules_inside | ({node.module} if inside - modules_inside else set())
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("bough.")}
    return Said(ast.get_docstring(tree), frozenset(names))


def imported(path: Path) -> set[str]:
    """The rooms that a module imports from."""
    return {room_of(name.removeprefix("bough.")) for name in said(path).imports}


def test_every_module_has_its_room():
    assert {room_of(name_of(path)) for path in modules()} == set(ROOMS)


def test_imports_point_one_way():
    upward = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in modules()
        for name in imported(path)
        if PLACE[name] > PLACE[room_of(name_of(path))]
    ]
    assert upward == []


@pytest.mark.parametrize(
    ("package", "strangers"),
    [
        ("training", {"environments", "worlds", "engines", "rollouts", "curation", "methods"}),
        ("engines", {"training"}),
    ],
)
def test_what_a_package_never_imports(package: str, strangers: set[str]):
    """The rooms are one line, but training and sampling stand beside each other."""
    found = {str(path.relative_to(SOURCE)): imported(path) & strangers for path in (SOURCE / package).rglob("*.py")}
    assert found and not any(found.values()), found


def test_nothing_is_called_utils():
    assert [path for path in SOURCE.rglob("*") if path.stem in ("utils", "helpers", "misc", "common")] == []


def test_every_module_says_what_it_is_for():
    assert [str(path) for path in SOURCE.rglob("*.py") if path.stat().st_size and not said(path).docstring] == []
