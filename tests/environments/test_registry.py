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


def test_a_class_without_our_base_gets_the_rest_of_the_contract():
    found = find("tests.environments.worlds:NotAnEnvironment")
    assert issubclass(found, Environment) and found.max_turns == 50
    assert found.name == "tests.environments.worlds:NotAnEnvironment"


def test_what_a_file_may_name_is_built_in_or_installed(monkeypatch: pytest.MonkeyPatch):
    points = {"count": EntryPoint("count", "tests.environments.worlds:Counting", registry.GROUP)}
    monkeypatch.setattr(registry, "plugged_in", lambda: points)
    assert find_listed("count") is Counting and find_listed("household") is find("household")
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
    with pytest.raises(InputError, match=r"'gone' \(no.such.module:Counting\) cannot be loaded: ModuleNotFoundError"):
        find("gone")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("househould", "did you mean household?"),
        ("nothing-like-it", "your own is given as module:Class or path/to/file.py:Class"),
        ("no/such/file.py:X", "no/such/file.py: there is no such file"),
        ("no.such.module:X", "no.such.module cannot be loaded: ModuleNotFoundError"),
        ("tests.environments.worlds:Count", "has no 'Count'; did you mean Counting?"),
        ("tests.environments.worlds:itertools", "is a module; it must be a class"),
        ("bough.types:Task", "has no method start and no step"),
    ],
)
def test_what_cannot_be_found_is_said_with_what_was_tried(name: str, complaint: str):
    with pytest.raises(InputError) as error:
        find(name)
    assert complaint in str(error.value)


def test_a_file_that_breaks_is_named_and_may_be_tried_again(tmp_path: Path):
    file = tmp_path / "world.py"
    file.write_text("1 / 0")
    with pytest.raises(InputError, match=r"world.py cannot be loaded: ZeroDivisionError: division by zero"):
        find(f"{file}:World")
    file.write_text(WORLDS.read_text())
    assert find(f"{file}:Counting").name == "counting"
