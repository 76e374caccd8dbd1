from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.experiments.recipe import Gate, Recipe, load_recipe, plan
from bough.experiments.run import Run, RunConfig

TEXT = """\
model: tiny
defaults: {environment: household}
stages:
  - collect: {name: demonstrations, tasks: 4}
  - demos:
  - repeat:
      rounds: 2
      stages:
        - collect: {attempts: 2}
        - dpo: {from: other, max_steps: 3}
  - eval: {gate: {alpha: 0.1}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return path


def test_rounds_are_unrolled_and_every_stage_has_a_folder(file: Path):
    recipe = load_recipe(file, {})
    assert recipe.name == "mine", "that of its file"
    stages = plan(recipe)
    assert [stage.folder for stage in stages] == [
        "01-demonstrations", "02-demos", "03-collect", "04-dpo", "05-collect-round-2", "06-dpo-round-2", "07-eval",
    ]  # fmt: skip
    assert [stage.verb for stage in stages[:2]] == ["collect", "demos"]
    assert (stages[3].sources, stages[3].settings) == (("other",), {"max_steps": 3})
    assert stages[6].gate == Gate(alpha=0.1) and stages[6].settings == {}


def test_settings_are_changed_by_verb_by_name_and_in_the_defaults(file: Path):
    changes = {"model": "smollm2", "defaults.options.types": ["a"], "demonstrations.tasks": 9, "dpo.beta": 0.5}
    recipe = load_recipe(file, changes)
    stages = plan(recipe)
    assert recipe.model == "smollm2" and recipe.defaults["options"] == {"types": ["a"]}
    assert stages[0].settings["tasks"] == 9
    assert [stage.settings.get("beta") for stage in stages] == [None, None, None, 0.5, None, 0.5, None]
    assert "tasks" not in plan(load_recipe(file, {"collect.attempts": 3}))[2].settings
    file.write_text("defaults:\nstages: [{demos: }]")
    assert load_recipe(file, {"defaults.max_turns": 3}).defaults == {"max_turns": 3}


def test_a_change_replaces_a_setting_however_the_recipe_writes_it(tmp_path: Path):
    path = tmp_path / "nested.yaml"
    path.write_text(
        "defaults: {environment: {name: household, options: {a: 1}}, temperature: 1.0}\n"
        "stages: [{sft: {optimizer: {learning_rate: 1, name: adamw}, lora_r: 4}}]\n"
    )
    changes = {
        "defaults.environment": "web", "defaults.options.b": 2, "defaults.sampling.temperature": 0.5,
        "sft.learning_rate": 3, "sft.lora.r": 8, "sft.optimizer.max_steps": 9, "sft.batch_size": 2,
    }  # fmt: skip
    recipe = load_recipe(path, changes)
    assert recipe.defaults == {"environment": {"name": "web", "options": {"a": 1, "b": 2}}, "temperature": 0.5}
    optimizer = {"learning_rate": 3, "name": "adamw", "max_steps": 9, "batch_size": 2}
    assert plan(recipe)[0].settings == {"optimizer": optimizer, "lora_r": 8}


def test_defaults_reach_the_commands_that_have_the_setting(tmp_path: Path):
    path = tmp_path / "nested.yaml"
    path.write_text(
        "defaults: {environment: {name: household, split: train}, sampling: {temperature: 0.5}, lora: {r: 8}}\n"
        "stages: [{collect: {sampling: {top_k: 5}}}, {pairs: }, {eval: {temperature: 0.7}}]\n"
    )
    recipe = load_recipe(path, {})
    collect, pairs, evaluation = (settings for _, settings in Run(recipe, tmp_path / "run").settings())
    assert (collect["environment"], collect["split"]) == ("household", "train")
    assert (collect["temperature"], collect["top_k"]) == (0.5, 5)
    assert pairs["environment"] == "household" and "temperature" not in pairs and "split" not in pairs
    assert (evaluation["temperature"], evaluation["split"]) == (0.7, "train")


def test_stages_that_are_not_well_formed_are_all_named():
    never = {"repeat": {"rounds": 0, "stages": []}}
    recipe = Recipe(stages=[{"sft": 3}, {"a": {}, "b": {}}, {"repeat": {"rounds": "x"}}, never])
    with pytest.raises(InputError) as error:
        plan(recipe)
    assert [problem.partition(":")[0].partition(" ")[0] for problem in error.value.problems] == [
        "stages[0].sft", "stages[1]", "stages[2].repeat", "stages[3].repeat",
    ]  # fmt: skip


def test_every_round_of_a_round_has_a_number_of_its_own():
    inner = {"repeat": {"rounds": 2, "stages": [{"collect": {}}]}}
    stages = plan(Recipe(stages=[{"repeat": {"rounds": 3, "stages": [inner]}}]))
    assert [stage.round for stage in stages] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("text", "change", "problem"),
    [
        (TEXT, {"dop.beta": 1}, "dop.beta: there is no stage 'dop'; did you mean dpo"),
        (TEXT, {"modle": 1}, "modle is not a setting; did you mean model"),
        ("stages: [{collect: 5}]", {"collect.tasks": 3}, "there is no stage 'collect'"),
        ("stages: [{repeat: 3}]", {"collect.tasks": 3}, "there is no stage 'collect'"),
        ("stages: [{collect: {options: 3}}]", {"collect.options.x": 4}, "collect.options.x: options is 3"),
        ("model: tiny\nstages: [{demos: }]\nmodel: smollm2", {}, "model is set twice"),
    ],
)
def test_what_cannot_be_changed_or_meant_is_said(tmp_path: Path, text: str, change: dict[str, int], problem: str):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        load_recipe(tmp_path / "mine.yaml", change)
    assert problem in str(error.value)


CODE = """\
defaults: {environment: "evil.py:X"}
stages:
  - collect: {name: own, environment: "evil:Y", tasks: 4}
  - repeat: {rounds: 2, stages: [{grpo: {rewards: {"evil.py:f": 1, outcome: 1}}}]}
  - groups: {rewards: ["evil.py:g=1", "overlong={weight: 1}"]}
  - pairs: {rules: "evil.py:R"}
"""


def test_a_recipe_cannot_name_code_unless_the_command_line_does(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(CODE)
    with pytest.raises(InputError) as error:
        load_recipe(tmp_path / "mine.yaml", {})
    assert error.value.problems == [
        "defaults.environment is 'evil.py:X'; --set defaults.environment=evil.py:X",
        "own.environment is 'evil:Y'; --set own.environment=evil:Y",
        "grpo.rewards is 'evil.py:f'; --set 'grpo.rewards={evil.py:f: 1}'",
        "groups.rewards is 'evil.py:g'; --set 'groups.rewards={evil.py:g: 1}'",
        "pairs.rules is 'evil.py:R'; --set pairs.rules=evil.py:R",
    ]
    given = ["defaults={environment: evil.py:X}", "own.environment=evil:Y"]
    given += ["grpo.rewards={evil.py:f: 1}", "groups.rewards={evil.py:g: 2}", "pairs.rules=evil.py:R"]
    recipe = load_recipe(tmp_path / "mine.yaml", RunConfig(recipe="mine.yaml", set=given).set)  # type: ignore[arg-type]
    assert recipe.defaults == {"environment": "evil.py:X"}
    nested = "stages: [{collect: {environment: {name: 'evil.py:X'}}}, {pairs: {failure_modes: {rules: 'c.py:Y'}}}]"
    path = tmp_path / "nested.yaml"
    path.write_text(nested)
    with pytest.raises(InputError) as error:
        load_recipe(path, {})
    assert error.value.problems == [
        "collect.environment.name is 'evil.py:X'; --set collect.environment.name=evil.py:X",
        "pairs.failure_modes.rules is 'c.py:Y'; --set pairs.failure_modes.rules=c.py:Y",
    ]
    load_recipe(path, {"collect.environment.name": "mine.py:X", "pairs.rules": "mine.py:Y"})


def test_a_recipe_cannot_name_a_cluster_elsewhere_unless_the_command_line_does(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: {cluster: '6.6.6.6:1'}\nstages: [{collect: {cluster: {address: '6.6.6.6:2'}}}]")
    with pytest.raises(InputError) as error:
        load_recipe(path, {})
    assert error.value.problems == [
        "defaults.cluster is '6.6.6.6:1'; --set defaults.cluster=6.6.6.6:1",
        "collect.cluster.address is '6.6.6.6:2'; --set collect.cluster.address=6.6.6.6:2",
    ]
    load_recipe(path, {"defaults.cluster": "10.0.0.1:1", "collect.cluster.address": "auto"})


@pytest.mark.parametrize("name", ["../../other", "..", "/etc", "a/b", ".x", "a b", ""])
def test_a_name_leads_nowhere_else(name: str):
    given = {"collect": {"name": name}}
    for stages in ([given], [{"repeat": {"rounds": 2, "stages": [given]}}], [{name: {}}]):
        with pytest.raises(InputError) as error:
            plan(Recipe(stages=stages))  # type: ignore[arg-type]
        [problem] = error.value.problems
        assert f"its name is {name!r}; a name consists of" in problem
    with pytest.raises(InputError, match=r"name is .*; a name consists of"):
        Recipe(name=name, stages=[{"demos": {}}])


def nested(depth: int) -> Any:
    inner: Any = [{"collect": {}}]
    for _ in range(depth):
        inner = [{"repeat": {"rounds": 999, "stages": inner}}]
    return inner


@pytest.mark.parametrize(
    "stages",
    [
        [{"repeat": {"rounds": 10**9, "stages": [{"collect": {}}]}}],
        [{"repeat": {"rounds": 10**9, "stages": [3]}}],
        [{"demos": {}}] * 1001,
        nested(20),
    ],
)
def test_a_billion_rounds_are_refused_before_they_are_counted_out(stages: Any):
    with pytest.raises(InputError, match="the recipe has more than 1000 stages with its rounds unrolled"):
        plan(Recipe(stages=stages))
