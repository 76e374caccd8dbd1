"""Settings of `bough run` and `bough runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from bough.config.base import Config
from bough.config.environment import key_values


class RunConfig(Config):
    """Plays the stages of a recipe. A run that was stopped goes on; stages that have not changed are skipped."""

    recipe: str = Field(
        description="a .yaml file, or a shipped recipe's name (--dry-run shows its stages)",
        json_schema_extra={"positional": True},
    )
    output_dir: Path | None = Field(
        None, description="the run's folder (default: runs/ and the recipe's name)", json_schema_extra={"short": "-o"}
    )
    set: Annotated[dict[str, JsonValue], BeforeValidator(key_values)] = Field(
        {}, description="change the recipe: model=…, seed=…, world.max_turns=…, or STAGE.SETTING=… by verb or name"
    )
    report_to: list[Literal["mlflow", "wandb", "tensorboard", "none"]] | None = Field(
        None, description="trackers besides the run's own files; none: no other (default: mlflow where it is installed)"
    )
    dry_run: bool = Field(False, description="check every stage's settings and show them; run nothing")


class RunsListConfig(Config):
    """Which runs there are, and how far each has come."""

    folder: Path = Field(Path("runs"), description="where to look", json_schema_extra={"positional": True})


class RunsShowConfig(Config):
    """One run: its stages, what each was made of, its numbers."""

    run: Path = Field(description="the run's folder", json_schema_extra={"positional": True})
