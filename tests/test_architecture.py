"""The house rules that a machine can check."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "bough"
# Data flows downwards in this list; a module imports only from its own floor and those above it.
FLOORS = [
    "plural", "bit_exact", "event_loop", "given", "errors", "digest", "disk", "paths", "cache", "types", "ledger",
    "metrics", "wheels", "loopback", "retries",
    "config", "rundir", "formats", "trajectories", "terminal", "speech", "sandbox", "environments", "worlds", "models",
    "calls", "trees", "policy", "rewards", "methods", "tracking", "training", "engines", "serving", "rollouts",
    "cluster", "curation", "online", "train", "evaluation", "recipes", "verbs", "runs", "sweeps", "evolution", "cards",
    "viewer", "api", "commands", "cli",
]  # fmt: skip
FLOOR = {name: number for number, name in enumerate(FLOORS)}


def modules() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem not in ("__init__", "__main__")]


def floor_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


class Said(NamedTuple):
    """What a module says: its docstring, and whole names of modules of Bough that it imports from."""

    docstring: str | None
    imports: frozenset[str]


@cache  # several tests ask, and parsing everything takes seconds
def said(path: Path) -> Said:
    tree = ast.parse(path.read_text())
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bough"):
            names |= {node.module} if "." in node.module else {f"bough.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("bough.")}
    return Said(ast.get_docstring(tree), frozenset(names))


def imported(path: Path) -> set[str]:
    """The packages, and modules outside of one, that a module imports from."""
    return {name.split(".")[1] for name in said(path).imports}


def test_every_module_has_its_floor():
    assert {floor_of(path) for path in modules()} <= set(FLOOR)


def test_imports_point_one_way():
    upward = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in modules()
        for name in imported(path)
        if FLOOR[name] > FLOOR[floor_of(path)]
    ]
    assert upward == []


@pytest.mark.parametrize(
    ("package", "strangers"),
    [
        ("methods", {"environments", "worlds", "engines", "rollouts", "policy", "training"}),
        ("training", {"environments", "worlds", "engines", "rollouts", "curation"}),
        ("engines", {"methods", "training"}),
    ],
)
def test_what_a_package_never_imports(package: str, strangers: set[str]):
    """The floors are one line, but training and playing stand beside each other."""
    found = {str(path.relative_to(SOURCE)): imported(path) & strangers for path in (SOURCE / package).rglob("*.py")}
    assert found and not any(found.values()), found


def test_training_knows_only_the_contract_of_a_method():
    names = {name for path in (SOURCE / "training").glob("*.py") for name in said(path).imports}
    assert {name for name in names if name.startswith("bough.methods")} == {"bough.methods.base"}


def test_nothing_is_called_utils():
    assert [path for path in SOURCE.rglob("*") if path.stem in ("utils", "helpers", "misc", "common")] == []


def test_every_module_says_what_it_is_for():
    assert [str(path) for path in SOURCE.rglob("*.py") if path.stat().st_size and not said(path).docstring] == []
