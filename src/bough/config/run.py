"""Settings of `bough run` and `bough runs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, JsonValue, model_validator

from bough.config.groups import ClusterConfig, ReportConfig, key_values
from bough.config.yaml_file import read_value


class RunConfig(ReportConfig):
    """Runs the stages of a recipe. A stopped run resumes; stages whose inputs have not changed are skipped."""

    recipe: str = Field(
        description="a .yaml file, or the name of a shipped recipe (--dry-run shows its stages)",
        json_schema_extra={"positional": True},
    )
    output_dir: Path | None = Field(
        None,
        description="the run folder (default: runs/NAME, with the name of the recipe)",
        json_schema_extra={"short": "-o"},
    )
    set: Annotated[dict[str, JsonValue], BeforeValidator(key_values)] = Field(
        {},
        description="change it: model=…, seed=…, defaults.max_turns=…, or STAGE.SETTING=… (a command or a name)",
    )
    cluster: ClusterConfig = ClusterConfig()
    report_to: list[Literal["mlflow", "wandb", "tensorboard", "none"]] | None = Field(
        None, description="trackers to use in addition to the run folder, or none (default: mlflow if it is installed)"
    )
    dry_run: bool = Field(False, description="check and print the settings of every stage; run nothing")


class RunsListConfig(ReportConfig):
    """Lists the runs in a folder and the progress of each: recipes and single commands."""

    folder: Path = Field(Path("runs"), description="the folder of the runs", json_schema_extra={"positional": True})


class RunsShowConfig(ReportConfig):
    """Shows one run: its stages, their inputs and outputs, its results."""

    run: Path = Field(description="the run folder", json_schema_extra={"positional": True})


# Settings of `bough sweep`.

# YAML reads 1e-5, which has no point, as text.
EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+")


def _values(given: Any) -> Any:
    """`SETTING=VALUE,VALUE` arguments of the command line, as lists by setting; values are read as YAML."""
    if not isinstance(given, list):
        return given
    found: dict[str, Any] = {}
    for word in given:
        key, equals, text = str(word).partition("=")
        if not equals or not text.strip():
            raise ValueError(f"{word!r} must be written as SETTING=VALUE,VALUE, such as dpo.beta=0.01,0.1,0.5")
        if key in found:
            raise ValueError(f"{key} is given twice; list all its values after one {key}=")
        try:
            values = read_value(f"[{text}]")
        except yaml.YAMLError as error:
            raise ValueError(f"{word!r} cannot be read: values are written as in YAML ({error})") from None
        found[key] = [float(one) if isinstance(one, str) and EXPONENT.fullmatch(one) else one for one in values]
    return found


class SweepConfig(ReportConfig):
    """Runs a recipe once for every combination of settings and every seed, and reports success across seeds.

    Stages that do not depend on a varied setting are computed once per seed and shared. A stopped
    sweep resumes; more values or seeds can be added later. The folder gets a table (results.md,
    results.csv, results.json) and a figure (figure.svg).
    """

    recipe: str = Field(
        description="a .yaml file, or the name of a shipped recipe",
        json_schema_extra={"positional": True},
    )
    vary: Annotated[dict[str, list[JsonValue]], BeforeValidator(_values)] = Field(
        min_length=1,
        description="settings with their values, such as dpo.beta=0.01,0.1,0.5 or pairs.kinds=[episode],[parting]: "
        "STAGE.SETTING (a command or a name), defaults.SETTING or model; of several, all combinations are run",
    )
    seeds: int = Field(
        3, ge=1, le=1000, description="runs per combination; each adds 0, 1, 2, … to every seed in the recipe"
    )
    output: Path | None = Field(
        None,
        description="the folder of the sweep (default: runs/NAME-sweep, with the name of the recipe)",
        json_schema_extra={"short": "-o"},
    )
    set: Annotated[dict[str, JsonValue], BeforeValidator(key_values)] = Field(
        {}, description="change the recipe for all runs, as in `bough run`: model=… or STAGE.SETTING=…"
    )
    jobs: int = Field(
        1,
        ge=1,
        le=1000,
        description="number of runs at the same time on this machine, each in a process of its own; "
        "with --cluster use --workers",
    )
    cluster: ClusterConfig = ClusterConfig()
    report_to: list[Literal["mlflow", "wandb", "tensorboard", "none"]] = Field(
        ["none"], description="trackers that each run reports to, or none"
    )
    dry_run: bool = Field(
        False, description="check all settings and print the runs and the stages they share; run nothing"
    )

    @model_validator(mode="after")
    def _jobs_are_for_one_machine(self) -> Self:
        if self.cluster.address is not None and self.jobs > 1:
            raise ValueError("`jobs` is the number of runs on this machine; with `cluster` use `workers`")
        return self
