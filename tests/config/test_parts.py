from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import Field

from bough.commands import table
from bough.config import flags
from bough.config.base import Config, flattened, leaves, overlaid, without
from bough.errors import InputError


class Adapter(Config):
    """The adapter."""

    r: int = Field(16, ge=1, description="its rank", json_schema_extra={"flag": "lora_r"})
    alpha: int = Field(32, description="its scale", json_schema_extra={"flag": "lora_alpha"})


class Optimizer(Config):
    """How weights change."""

    name: Literal["adamw", "sgd"] = Field("adamw", description="which", json_schema_extra={"flag": "optimizer"})
    learning_rate: float = Field(1e-3, gt=0, description="the rate")
    num_epochs: int = Field(3, description="passes")


class Data(Config):
    """What is read."""

    train_file: Path = Field(description="the data")
    format: str = Field("auto", description="its format")


class Training(Config):
    """Trains."""

    data: Data
    lora: Adapter = Adapter()
    optimizer: Optimizer = Optimizer(num_epochs=1)
    beta: float = Field(0.1, description="the pull")


def made(**values: Any) -> Training:
    return Training(**{"train_file": "a"} | values)


def problems(**values: Any) -> list[str]:
    with pytest.raises(InputError) as error:
        made(**values)
    return error.value.problems


def test_flat_nested_and_part_are_the_same():
    flat = made(lora_r=8, learning_rate=0.5, optimizer="sgd")
    assert flat == made(lora={"r": 8}, optimizer={"name": "sgd", "learning_rate": 0.5})
    assert flat == made(lora=Adapter(r=8), optimizer=Optimizer(name="sgd", learning_rate=0.5))
    assert flat == made(lora={"r": 8}, optimizer={"name": "sgd"}, learning_rate=0.5)
    assert flat == Training(data={"train_file": "a"}, lora_r=8, learning_rate=0.5, optimizer="sgd")
    assert (flat.lora.r, flat.optimizer.name, flat.data.train_file) == (8, "sgd", Path("a"))


def test_what_is_left_out_keeps_the_defaults_of_the_command():
    assert made(learning_rate=0.5).optimizer.num_epochs == 1
    assert made(optimizer={"name": "sgd"}).optimizer.num_epochs == 1
    assert made(optimizer={"num_epochs": 4}).optimizer.num_epochs == 4


def test_a_setting_given_flat_and_nested_is_refused_with_both_names():
    assert problems(lora_r=4, lora={"r": 8}, beta="x") == [
        "beta is 'x'; it must be a number",
        "lora_r and lora.r are the same setting; remove one of them",
    ]


def test_unknown_keys_are_errors_at_both_levels():
    assert problems(lora_s=1) == ["lora_s is not a setting; did you mean lora_r?"]
    assert problems(lora={"alpa": 1}) == ["lora.alpa is not a setting; did you mean alpha?"]
    assert problems(lora={"lora_r": 1}) == ["lora.lora_r is not a setting; did you mean lora.r?"]
    assert problems(loar={"r": 1}) == ["loar is not a setting; did you mean lora?"]
    assert problems(lora=8) == ["lora is 8; it must be a mapping"]
    with pytest.raises(InputError, match=r"lora_r is not a setting; did you mean r\?"):
        Adapter(lora_r=1)  # type: ignore[call-arg]


def test_a_problem_is_named_as_the_setting_was_written():
    assert problems(lora_r=0, learning_rate=0) == [
        "lora_r is 0; it should be greater than or equal to 1",
        "learning_rate is 0; it should be greater than 0",
    ]
    assert problems(lora={"r": 0}) == ["lora.r is 0; it should be greater than or equal to 1"]
    assert problems(optimizer="sgdd") == ["optimizer is 'sgdd'; choose one of 'adamw', 'sgd'"]
    with pytest.raises(InputError) as error:
        Training()  # type: ignore[call-arg]
    assert error.value.problems == ["train_file is required"]


def test_a_file_names_the_line_of_a_nested_key(tmp_path: Path):
    file = tmp_path / "run.yaml"
    lora, optimizer = "lora:\n  r: 0\n  alpa: 3\nlora_alpha: 1\n", "optimizer:\n  name: b\n  name: c\n"
    file.write_text("data:\n  train_file: a\n" + lora + optimizer)
    with pytest.raises(InputError) as error:
        Training.load(file, {"lora_alpha": "x"})
    assert [problem.removeprefix(f"{tmp_path}/") for problem in error.value.problems] == [
        "run.yaml:9: optimizer.name is set twice; the first is on line 8",
        "run.yaml:4: lora.r is 0; it should be greater than or equal to 1",
        "--lora-alpha is 'x'; it must be a whole number",
        "run.yaml:5: lora.alpa is not a setting; did you mean alpha?",
        "run.yaml:8: optimizer.name is 'c'; choose one of 'adamw', 'sgd'",
    ]


def test_flags_override_one_setting_of_a_part(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("train_file: a\noptimizer: {name: sgd, learning_rate: 0.5}\nlora: {r: 8, alpha: 4}\n")
    parser = flags.build(Training, "bough train")
    config = flags.parse(Training, parser, ["--config", str(file), "--optimizer", "adamw", "--lora-r=2"])
    assert config == made(optimizer="adamw", learning_rate=0.5, lora_r=2, lora_alpha=4)
    assert "How weights change" in parser.format_help() and "passes (default: 1)" in parser.format_help()


def test_settings_on_file_are_nested_and_read_back(tmp_path: Path):
    config = made(lora_r=8, optimizer="sgd")
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert "lora:\n  r: 8\n  alpha: 32\n" in config.to_yaml()
    assert Training.load(tmp_path / "config.yaml") == config
    assert Training(**config.flat_dump()) == config
    assert config.flat_dump()["lora_r"] == 8 and config.flat_dump()["optimizer"] == "sgd"


def test_every_setting_once_by_its_flat_name():
    names = ["train_file", "format", "lora_r", "lora_alpha", "optimizer", "learning_rate", "num_epochs", "beta"]
    found = leaves(Training)
    assert list(found) == names
    assert found["lora_r"].nested == "lora.r" and found["lora_r"].part is Adapter
    assert found["num_epochs"].default == 1 and found["lora_r"].of(made(lora_r=7)) == 7


def test_flat_names_are_unique():
    class Other(Config):
        learning_rate: float = 1.0

    class Both(Config):
        optimizer: Optimizer = Optimizer()
        other: Other = Other()

    with pytest.raises(TypeError, match=r"other\.learning_rate and optimizer\.learning_rate"):
        leaves(Both)


def test_given_values_by_their_flat_names():
    values = {"lora": {"r": 8}, "optimizer": {"name": "sgd"}, "beta": 1, "odd": 2}
    assert flattened(Training, values) == {"lora_r": 8, "optimizer": "sgd", "beta": 1, "odd": 2}
    # What the Config will refuse stays as it is.
    for refused in ({"lora": {"s": 1, "r": 2}}, {"lora": {"r": 1}, "lora_r": 2}, {"lora": 3}):
        assert flattened(Training, refused) == refused


def test_settings_are_taken_out_and_replaced_in_either_form():
    values = {"lora": {"r": 8, "alpha": 4}, "beta": 1, "optimizer": "sgd"}
    assert without(Training, values, {"lora_r", "optimizer"}) == {"lora": {"alpha": 4}, "beta": 1}
    changed = overlaid(Training, values, {"lora_r": 2, "learning_rate": 3, "beta": 0})
    assert changed == {"lora": {"r": 2, "alpha": 4}, "optimizer": "sgd", "learning_rate": 3, "beta": 0}


def every(config: type[Config]) -> set[type[Config]]:
    return {config}.union(*map(every, config.__subclasses__()))


def test_settings_are_composed_not_inherited_from_several_classes():
    for verb in map(table.command, table.TABLE):
        leaves(verb.config)  # flat names are unique
    ours = [config for config in every(Config) if config.__module__.startswith("bough.")]
    assert len(ours) > 40
    assert [config.__name__ for config in ours if len(config.__bases__) > 1] == []
    assert max(config.__mro__.index(Config) for config in ours) <= 4  # GRPO, online, training, report


@pytest.mark.parametrize("name", ["sft", "dpo", "grpo", "collect", "pairs", "eval", "doctor"])
def test_a_flat_file_of_all_settings_is_read_as_a_nested_one(name: str, tmp_path: Path):
    required = {"eval": {"environment": "web", "output": "o"}, "grpo": {"environment": "web", "max_steps": 1}}
    common = {"train_file": "a", "environment": "web", "file": "b", "output": "o"}
    config_class: type[Config] = table.command(name).config
    needed = {key for key, leaf in leaves(config_class).items() if leaf.info.is_required()}
    config = config_class(**required.get(name, {key: common[key] for key in needed}))
    (tmp_path / "flat.yaml").write_text(yaml.safe_dump(config.flat_dump()))
    (tmp_path / "nested.yaml").write_text(config.to_yaml())
    assert config_class.load(tmp_path / "flat.yaml") == config_class.load(tmp_path / "nested.yaml") == config


def test_a_setting_of_an_earlier_version_is_said_to_be_gone():
    old = {"watch_kl": 0.2, "optimizer": {"gradient_accumulation_steps": 2}}
    with pytest.raises(InputError, match=r"watch_kl was removed: the watch has fixed limits; --no-watch") as error:
        table.command("grpo").config(environment="household", max_steps=1, **old)
    assert "gradient_accumulation_steps was removed: --batch-size" in str(error.value)


@pytest.mark.parametrize("name", list(table.TABLE))
def test_help_explains_at_most_40_settings(name: str):
    command = table.command(name)
    assert set(command.essential) <= leaves(command.config).keys()
    assert len(command.essential or leaves(command.config)) <= 40


def test_the_settings_of_another_command_are_refused(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("command: dpo\ntrain_file: a.jsonl\n")
    with pytest.raises(InputError, match=r"config\.yaml has the settings of bough dpo, not of this command"):
        table.command("sft").config.load(tmp_path / "config.yaml")
    assert table.command("dpo").config.load(tmp_path / "config.yaml").command == "dpo"
