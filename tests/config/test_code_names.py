from pathlib import Path

import pytest

from bough.config.base import Config, code_in
from bough.config.groups import CollectConfig
from bough.curation.demonstrations import GroupsConfig
from bough.curation.rounds import PairsConfig
from bough.errors import InputError
from bough.experiments.recipe import load_recipe
from bough.experiments.run import RunConfig
from bough.experiments.sweep import SweepConfig


def test_only_names_with_a_colon_are_code():
    settings = {"environment": "household", "rewards": {"outcome": 1, "overlong": {"max_length": 4}}, "model": "a:b"}
    assert list(code_in(settings)) == []
    settings = {"environment": "a.py:X", "rewards": ["outcome=1", "overlong={weight: 1}", "b:f=0.5"]}
    assert list(code_in(settings)) == [("environment", "environment", "a.py:X"), ("rewards", "rewards", "b:f")]
    assert list(code_in({"environment": 3, "rewards": None})) == []
    assert list(code_in({"rules": "household"})) == []
    assert list(code_in({"rules": "c.py:Y"})) == [("rules", "rules", "c.py:Y")]


@pytest.mark.parametrize("name", ["gymnasium:FrozenLake-v1", "textarena:GuessTheNumber-v0", "gymnasium:ALE/Pong-v5"])
def test_environments_of_installed_packages_are_not_code(name: str):
    assert list(code_in({"environment": name})) == []


@pytest.mark.parametrize(
    "name", ["gymnasium:module:ID", "mcp:rm -r x", "openenv:http://host", "mygymnasium:X", "gymnasium:", "textarena"]
)
def test_a_module_a_command_and_an_address_are_code(name: str):
    assert bool(list(code_in({"environment": name}))) is (":" in name)


def test_code_inside_a_part_is_found():
    settings = {"environment": {"name": "a.py:X", "options": {"rules": "b:c"}}, "failure_modes": {"rules": "c.py:Y"}}
    assert list(code_in(settings)) == [
        ("environment.name", "environment", "a.py:X"),
        ("failure_modes.rules", "rules", "c.py:Y"),
    ]
    assert list(code_in({"environment": {"split": "a:b"}, "options": {"environment": "c:d"}})) == []


def test_an_unsafe_option_is_the_users_to_give(tmp_path: Path):
    """A file that turned the sandbox off would run what a model wrote, with the user's rights."""
    file = tmp_path / "collect.yaml"
    for lines in ("options: {unsafe_no_sandbox: true}", "environment: {name: interpreter, options: {unsafe_x: 1}}"):
        file.write_text(f"output: out\n{lines}\n")
        with pytest.raises(InputError, match=r"unsafe_\w+ names code .* give it as a flag, --options"):
            CollectConfig.load(file, {} if "environment" in lines else {"environment": "interpreter"})
    given = CollectConfig.load(None, {"output": "out", "environment": "interpreter", "options": ["unsafe_x=true"]})
    assert given.environment.options == {"unsafe_x": True}
    file.write_text("model: tiny\nstages:\n  - collect: {options: {unsafe_no_sandbox: true}}\n")
    with pytest.raises(InputError, match="names code"):
        load_recipe(file, {})
    load_recipe(file, {"collect.options.unsafe_no_sandbox": True})


def test_a_config_file_cannot_name_code_and_a_flag_can(tmp_path: Path):
    file = tmp_path / "collect.yaml"
    file.write_text("output: out\nenvironment: evil.py:X\n")
    with pytest.raises(InputError) as error:
        CollectConfig.load(file)
    assert error.value.problems == [
        f"{file}:2: environment names code ('evil.py:X'), which a file may not do; give it as a flag, --environment"
    ]
    assert CollectConfig.load(file, {"environment": "mine.py:X"}).environment.name == "mine.py:X"
    file.write_text("output: out\nenvironment:\n  split: seen\n  name: evil.py:X\n")
    with pytest.raises(InputError) as error:
        CollectConfig.load(file)
    assert error.value.problems == [
        f"{file}:4: environment.name names code ('evil.py:X'), which a file may not do; "
        "give it as a flag, --environment"
    ]
    mine = CollectConfig.load(file, {"environment": "mine.py:X"}).environment
    assert (mine.name, mine.split) == ("mine.py:X", "seen")
    file.write_text("file: a\noutput: out.jsonl\nrewards: {outcome: 1, 'evil.py:f': 1}\n")
    with pytest.raises(InputError, match=r"collect.yaml:3: rewards names code \('evil.py:f'\)"):
        GroupsConfig.load(file)


@pytest.mark.parametrize(
    ("lines", "key"), [("cluster: 10.0.0.1:6379", "cluster"), ("cluster: {address: '[::1]:1'}", "cluster.address")]
)
def test_a_config_file_cannot_name_a_cluster_elsewhere(tmp_path: Path, lines: str, key: str):
    file = tmp_path / "collect.yaml"
    file.write_text(f"output: out\nenvironment: household\n{lines}\n")
    with pytest.raises(InputError, match=rf"{key} names code .* give it as a flag, --cluster"):
        CollectConfig.load(file)
    assert CollectConfig.load(file, {"cluster": "10.0.0.2:6379"}).cluster.address == "10.0.0.2:6379"
    file.write_text("output: out\nenvironment: household\ncluster: auto\n")
    assert CollectConfig.load(file).cluster.address == "auto"


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (RunConfig, "set: {defaults.environment: 'evil.py:X'}"),
        (RunConfig, "set: ['defaults={environment: {name: evil.py:X}}']"),
        (RunConfig, "set: {grpo.rewards: ['evil.py:X=1']}"),
        (RunConfig, "set: {collect.cluster: 'evil.py:X'}"),
        (SweepConfig, "vary: {collect.environment.name: [household, 'evil.py:X']}"),
        (SweepConfig, "vary: ['collect.environment=household,evil.py:X']"),
    ],
)
def test_a_config_file_cannot_change_a_recipe_to_name_code(tmp_path: Path, config: type[Config], line: str):
    file = tmp_path / "run.yaml"
    file.write_text(f"recipe: a.yaml\n{line}\n")
    with pytest.raises(InputError, match=r"run.yaml:2: (set|vary) names code \('evil.py:X.*give it as a flag, --"):
        config.load(file)
    file.write_text("recipe: a.yaml\nset: {collect.tasks: 3, collect.environment: household}\n")
    overrides = {"vary": ["collect.environment=mine.py:X"]} if config is SweepConfig else {}
    assert config.load(file, overrides).set == {"collect.tasks": 3, "collect.environment": "household"}


@pytest.mark.parametrize("line", ["environment: !!binary {}", "rules: !!binary {}", "!!binary cnVsZXM=: evil.py:X"])
def test_code_cannot_be_named_in_base64(tmp_path: Path, line: str):
    file = tmp_path / "pairs.yaml"
    file.write_text(f"file: a\noutput: out.jsonl\n{line.format('ZXZpbC5weTpY')}\n")
    with pytest.raises(InputError, match=r"pairs\.yaml:3: not YAML"):
        PairsConfig.load(file)
