import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bough.environments import registry
from bough.environments.base import Environment
from bough.environments.registry import find, find_listed
from bough.errors import InputError
from tests.environments.worlds import Counting

WORLDS = Path(__file__).parent / "worlds.py"


def test_a_class_of_a_module():
    assert find("tests.environments.worlds:Counting") is Counting


def test_a_class_of_a_file_is_loaded_once():
    found = find(f"{WORLDS}:Counting")
    assert found.name == "counting" and found is find(f"{WORLDS}:Counting")


def test_records_do_not_hold_where_a_file_lies(tmp_path: Path):
    (tmp_path / "shop.py").write_text("class Shop:\n    def start(self): ...\n    def step(self, reply): ...\n")
    assert find(f"{tmp_path}/shop.py:Shop").name == f"{tmp_path.name}/shop.py:Shop"


def test_a_class_without_our_base_gets_the_rest_of_the_contract():
    found = find("tests.environments.worlds:NotAnEnvironment")
    assert issubclass(found, Environment) and found.max_turns == 50
    assert found.name == "tests.environments.worlds:NotAnEnvironment"


def test_a_file_may_name_only_what_is_installed(monkeypatch: pytest.MonkeyPatch):
    points = {"count": EntryPoint("count", "tests.environments.worlds:Counting", registry.GROUP)}
    monkeypatch.setattr(registry, "plugged_in", lambda: points)
    assert find_listed("count") is Counting
    for name in (f"{WORLDS}:Counting", "tests.environments.worlds:Counting"):
        with pytest.raises(InputError, match="there is no environment"):
            find_listed(name)


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch):
    points = {
        "count": EntryPoint("count", "tests.environments.worlds:Counting", registry.GROUP),
        "gone": EntryPoint("gone", "no.such.module:Counting", registry.GROUP),
    }
    monkeypatch.setattr(registry, "plugged_in", lambda: points)
    assert find("count") is Counting
    with pytest.raises(InputError, match=r"'gone' cannot be loaded: no.such.module:Counting raised ModuleNotFound"):
        find("gone")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("househould", "did you mean household? (your own: module:Class"),
        ("nothing-like-it", "interpreter, web (your own: module:Class or path/to/file.py:Class)"),
        ("bank.py", "'bank.py' is a file; name its class too: bank.py:Class"),
        ("no/such/file.py:X", "no/such/file.py: there is no such file"),
        ("no.such.module:X", "cannot be loaded: no.such.module raised ModuleNotFoundError"),
        ("tests.environments.worlds:Count", "has no 'Count'; did you mean Counting?"),
        ("tests.environments.worlds:itertools", "is of type module; it must be a class"),
        ("bough.types:Task", "has no method start and no step"),
        ("gymnasim:FrozenLake-v1", "there is no module 'gymnasim'; did you mean gymnasium:FrozenLake-v1?"),
        ("agent:tests.environments.test_registry:test_a_fle", "--agent tests.environments.test_registry:test_a_fle: "),
    ],
)
def test_what_cannot_be_found_is_said_with_what_was_tried(name: str, complaint: str):
    with pytest.raises(InputError) as error:
        find(name)
    assert complaint in str(error.value)


def test_a_file_that_breaks_is_named_and_may_be_tried_again(tmp_path: Path):
    file = tmp_path / "world.py"
    file.write_text("1 / 0")
    with pytest.raises(InputError, match=r"world.py raised ZeroDivisionError: division by zero \(.*world.py:1\)"):
        find(f"{file}:World")
    file.write_text(WORLDS.read_text())
    assert find(f"{file}:Counting").name == "counting"


def test_our_own_environments_are_entry_points_too():
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    found = {name: point.value for name, point in registry.plugged_in().items()}
    assert found.items() >= declared[registry.GROUP].items() and len(declared[registry.GROUP]) >= 3
    assert find("household").__module__ == "bough.worlds.household.environment"
    assert "BUILT_IN" not in vars(registry)


def test_another_package_cannot_take_over_a_name_of_ours(monkeypatch: pytest.MonkeyPatch):
    ours = EntryPoint("household", "bough.worlds.household.environment:Household", registry.GROUP)
    other = EntryPoint("household", "tests.environments.worlds:Counting", registry.GROUP)
    for points in ([ours, other], [other, ours]):
        monkeypatch.setattr(registry, "entry_points", lambda group, points=points: points)
        assert registry.plugged_in()["household"] is ours


def test_an_installation_without_entry_points_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "plugged_in", dict)
    with pytest.raises(InputError, match=r"no environment is registered.*run pip install again"):
        find("household")
