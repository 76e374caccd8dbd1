from pathlib import Path
from typing import Literal

import pytest
from pydantic import AliasChoices, Field, field_validator

from bough.config.base import Config
from bough.errors import InputError


class Training(Config):
    """A stage for these tests."""

    model: str = Field("tiny", validation_alias=AliasChoices("model", "model_name_or_path"))
    train_file: Path
    learning_rate: float = Field(1e-5, gt=0)
    epochs: int = 3
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    bf16: bool = False
    targets: list[str] = ["q_proj"]

    @field_validator("epochs")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value == 4:
            raise ValueError("four is not allowed")
        return value


def problems(values: str, tmp_path: Path, **flags: object) -> list[str]:
    file = tmp_path / "run.yaml"
    file.write_text(values)
    with pytest.raises(InputError) as error:
        Training.load(file, flags)
    return [problem.removeprefix(f"{tmp_path}/") for problem in error.value.problems]


def test_yaml_flags_and_python_give_the_same_settings(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("model_name_or_path: m\ntrain_file: a.jsonl\nlearning_rate: 2e-5\nbf16: true\n")
    python = Training(model="m", train_file=Path("a.jsonl"), learning_rate=2e-5, bf16=True)
    flags = {"model": "m", "train_file": "a.jsonl", "learning_rate": "2e-5", "bf16": "true"}
    assert Training.load(file) == python
    assert Training.load(None, flags) == python


def test_flags_override_the_file_whichever_name_it_used(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("model_name_or_path: m\ntrain_file: a.jsonl\nepochs: 1\n")
    loaded = Training.load(file, {"epochs": "7", "model": "other"})
    assert (loaded.epochs, loaded.model) == (7, "other")


def test_all_problems_are_reported_at_once_with_their_lines(tmp_path: Path):
    found = problems("learning_rat: 1\nschedule: cosin\nepochs: many\nbf16: 7\n\nlearning_rate: 0\n", tmp_path)
    assert found == [
        "--train-file is required",
        "run.yaml:6: learning_rate is 0; it should be greater than 0",
        "run.yaml:3: epochs is 'many'; it must be a whole number",
        "run.yaml:2: schedule is 'cosin'; choose one of 'constant', 'linear', 'cosine'",
        "run.yaml:4: bf16 is 7; it must be true or false",
        "run.yaml:1: learning_rat is not a setting; did you mean learning_rate?",
    ]


def test_a_problem_with_a_flag_is_spelt_as_a_flag(tmp_path: Path):
    found = problems("train_file: a\n", tmp_path, learning_rat="1", epochs="x")
    assert found == [
        "--epochs is 'x'; it must be a whole number",
        "--learning-rat is not a setting; did you mean --learning-rate?",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("epochs: 4", "run.yaml:2: epochs is 4; four is not allowed"),
        ("targets: [q, 7]", "run.yaml:2: targets[1] is 7; it must be text"),
        ("epochs: 1\nepochs: 2", "run.yaml:3: epochs is set twice; the first is on line 2"),
    ],
)
def test_own_rules_places_in_lists_and_repeated_keys_are_named(tmp_path: Path, line: str, said: str):
    assert problems(f"train_file: a\n{line}\n", tmp_path) == [said]


@pytest.mark.parametrize("path", ["s3://bucket/run", "gs://bucket/run", "file:///tmp/run", "S3://bucket"])
def test_an_address_is_not_taken_for_a_folder_of_this_machine(path: str, tmp_path: Path):
    (problem,) = problems("", tmp_path, train_file=path)
    assert "not an address" in problem and "mounted" in problem


@pytest.mark.parametrize("path", ["runs/a", "/data/s3:/a", "a:b", "c:/data", "hf://org/data"])
def test_other_paths_with_colons_are_paths(path: str):
    assert Training(train_file=Path(path)).train_file == Path(path)
