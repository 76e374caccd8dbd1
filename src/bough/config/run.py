"""Settings of `bough run` and `bough runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from bough.config.cluster import ClusterConfig
from bough.config.environment import key_values
from bough.config.report import ReportConfig


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
