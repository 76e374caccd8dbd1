from pathlib import Path
from typing import Literal

import pytest
from pydantic import AliasChoices, Field

from bough.commands.serve import ServeConfig
from bough.config import flags
from bough.config.base import Config
from bough.config.groups import CollectConfig
from bough.errors import InputError


class Source(Config):
    """What is read."""

    file: Path = Field(description="the file", json_schema_extra={"positional": True})


class Stage(Source):
    """Does a thing."""

    model: str = Field("tiny", description="100% yours", validation_alias=AliasChoices("model", "model_name_or_path"))
    use_lora: bool = Field(False, description="adapters only")
    lora_targets: list[str] = Field(["q"], description="which layers")
    schedule: Literal["linear", "cosine"] = Field("cosine", description="how the rate falls")
    limit: int | None = Field(None, description="how many")
    output: Path | None = Field(None, description="where to", json_schema_extra={"short": "-o"})


def parse(*words: str) -> Stage:
    settings = flags.parse(Stage, flags.build(Stage, "bough stage"), words)
    assert isinstance(settings, Stage)
    return settings


def test_flags_are_the_fields():
    settings = parse(
        "a.jsonl", "--use-lora", "--lora-targets", "q", "v", "--limit", "3", "-o", "out", "--schedule=linear"
    )
    assert settings == Stage(
        file=Path("a.jsonl"), use_lora=True, lora_targets=["q", "v"], limit=3, output=Path("out"), schedule="linear"
    )


def test_underscores_other_names_and_negations_are_understood():
    settings = parse("a.jsonl", "--model_name_or_path", "m", "--no-use-lora")
    assert (settings.model, settings.use_lora) == ("m", False)


def test_unknown_flags_and_bad_values_are_reported_together():
    with pytest.raises(InputError) as error:
        parse("--shedule=linear", "--limit", "three")
    assert error.value.problems == [
        "FILE is required",
        "--limit is 'three'; it must be a whole number",
        "--shedule is not a setting; did you mean --schedule?",
    ]
    assert str(error.value).splitlines()[-1] == "bough stage --help lists the flags"


@pytest.mark.parametrize(
    ("words", "said"), [(["--limit"], "expected one argument"), (["b.jsonl"], r"unexpected argument 'b\.jsonl'")]
)
def test_a_flag_without_its_value_and_a_stray_word_are_input_errors(words: list[str], said: str):
    with pytest.raises(InputError, match=said):
        parse("a.jsonl", *words)


def test_help_teaches_defaults_choices_and_where_a_flag_belongs():
    text = flags.build(Stage, "bough stage", "  bough stage a.jsonl").format_help()
    assert "Does a thing." in text
    assert "{linear,cosine}" in text
    assert "(default: cosine)" in text
    assert "100% yours" in text
    assert text.endswith("examples:\n  bough stage a.jsonl\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--agnt", "mine.py:play"], "--agnt is not a setting; did you mean --agent?"),
        ([], "--environment or --agent is required"),
        (["--agent", "mine.py:play", "--environment", "web"], "give either environment or agent, not both"),
    ],
)
def test_an_agent_may_be_given_instead_of_an_environment(words: list[str], said: str):
    with pytest.raises(InputError) as error:
        flags.parse(CollectConfig, flags.build(CollectConfig, "bough collect"), ["--output", "x", *words])
    assert said in error.value.problems


def test_help_names_what_may_be_given_instead_and_is_not_indented():
    assert "--environment … | --agent … --output … [flags]" in flags.build(CollectConfig, "bough collect").format_help()
    assert "\nA session is the path" in flags.build(ServeConfig, "bough serve").format_help()
