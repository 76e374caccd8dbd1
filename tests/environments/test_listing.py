import pytest

import bough
from bough.environments import registry
from bough.errors import InputError


def test_every_registered_environment_is_listed_with_its_options():
    found = {one.name: one for one in bough.list_environments()}
    assert {"household", "interpreter", "web"} <= set(found)
    household = found["household"]
    assert household.problem is None and household.max_turns == 50
    assert "admissible" in {option.name for option in household.options}
    assert household.summary and "\n" not in household.summary


def test_one_that_cannot_be_loaded_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    def broken(name: str) -> None:
        raise InputError(f"{name} needs a package")

    monkeypatch.setattr(registry, "find", broken)
    assert {one.problem for one in bough.list_environments()} >= {"household needs a package"}
