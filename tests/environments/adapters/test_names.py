from typing import Any

import pytest

from bough.cli import main
from bough.config.groups import CollectConfig
from bough.environments import registry as names
from bough.environments.registry import find, find_listed
from bough.errors import InputError


@pytest.fixture
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "find_spec", lambda package: None)


@pytest.mark.usefixtures("_nothing_installed")
@pytest.mark.parametrize("scheme", list(names.ADAPTERS))
def test_a_missing_package_is_said_with_how_to_install_it(scheme: str):
    with pytest.raises(InputError) as error:
        find(f"{scheme}:anything")
    package = names.ADAPTERS[scheme].package
    expected = f"environment '{scheme}:anything': {package} is not installed; run: pip install 'bough[{scheme}]'"
    assert str(error.value) == expected


@pytest.mark.usefixtures("_nothing_installed")
def test_env_list_names_the_adapters_and_what_they_need(capsys: Any):
    assert main(["env", "list"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for adapter in names.ADAPTERS.values():
        assert adapter.form in said
    assert "pip install 'bough[textarena]'" in said


def test_a_class_is_made_once():
    pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    assert find("gymnasium:FrozenLake-v1") is find_listed("gymnasium:FrozenLake-v1")
    assert find("gymnasium:FrozenLake-v1").name == "gymnasium:FrozenLake-v1"


def test_a_command_and_an_address_are_not_found_for_files():
    for name in ("mcp:serve-shop", "openenv:http://127.0.0.1:9", "verifiers:words"):
        with pytest.raises(InputError, match="there is no environment"):
            find_listed(name)
        assert CollectConfig.load(None, {"environment": name, "output": "x"}).environment.name == name


def test_another_scheme_is_a_module():
    assert names.adapt("my_package.worlds:Shop") is None and names.adapt("household") is None
