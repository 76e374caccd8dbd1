"""Settings of `bough eval` and `bough compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from bough.config.base import Config, flag
from bough.config.environment import EnvironmentConfig
from bough.config.rollouts import AgentConfig, CollectConfig, LimitsConfig
from bough.config.sampling import SamplingConfig

BASELINES = ("expert", "random")
# What belongs to one of the two uses only; the model, its template and the output belong to both.
OF_FILES = ("format", "token_budget", "max_length", "stride")
OF_BOTH = ("model", "chat_template", "output", "eval_file", "environment")


def _several(value: Any) -> Any:
    """One name is a list of one."""
    return [value] if isinstance(value, str) else value


class CertaintyConfig(Config):
    """How sure is sure."""

    level: float = Field(0.95, gt=0.5, lt=1, description="confidence of every interval; a test errs at most 1 - level")
    against: Literal["first", "all"] = Field(
        "first", description="compare every model with the first one, or all with all"
    )


class EvalConfig(EnvironmentConfig, AgentConfig, SamplingConfig, LimitsConfig, CertaintyConfig):
    """Measures models: how well they act in a world, or how likely they find the replies of a held-out file.

    With --environment every model plays the same tasks with the same seeds; success rates
    come with intervals and models with paired tests. With --eval-file a model's
    perplexity, token accuracy and preference accuracy are measured.
    """

    model: Annotated[list[str], BeforeValidator(_several)] = Field(  # type: ignore[assignment]
        ["smollm2"],
        min_length=1,
        validation_alias=AliasChoices("model", "model_name_or_path"),
        description="a model or an adapter's folder, or expert or random; several are compared",
    )
    environment: str = Field(
        "", description="a world to play in: household, web, interpreter, module:Class or path/to/file.py:Class"
    )
    split: str = Field("unseen", description="train, seen or unseen: which tasks to draw from")
    temperature: float = Field(0.0, ge=0, description="0 always takes the likeliest token")
    tasks: int = Field(
        100,
        ge=1,
        validation_alias=AliasChoices("tasks", "episodes"),
        description="how many tasks, each played --attempts times",
    )
    attempts: int = Field(1, ge=1, description="how often each task is tried, for pass@k and pass^k")
    stop_width: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="stop a model once its interval is as narrow as this; it then holds at any stopping time",
    )
    concurrency: int = Field(16, ge=1, description="episodes at a time")
    retries: int = Field(3, ge=0, description="how often an episode is played again when the world or engine broke")
    overwrite: bool = Field(False, description="forget the episodes in the folder")
    output: Path | None = Field(
        None,
        description="with --environment a folder, where a stopped evaluation goes on; with --eval-file a JSON file",
        json_schema_extra={"short": "-o"},
    )
    eval_file: Path | None = Field(None, description="held-out data: any format that `bough data formats` lists")
    format: str = Field("auto", description="the file's format")
    token_budget: int = Field(4096, ge=128, description="tokens in one forward pass, shared ones counted once")
    max_length: int | None = Field(None, ge=8, description="longest call in tokens (default: the model's context)")
    stride: float = Field(
        0.25, ge=0, lt=1, description="share of max_length that is freed at once when old steps are left out"
    )

    @model_validator(mode="after")
    def _one_use_and_what_belongs_to_it(self) -> Self:
        if bool(self.environment) == (self.eval_file is not None):
            what = "both" if self.environment else "neither"
            raise ValueError(
                f"give either --environment (to play) or --eval-file (to measure likelihoods); {what} of them is given"
            )
        use, other = ("--environment", "--eval-file") if self.environment else ("--eval-file", "--environment")
        strays = [flag(name) for name, info in type(self).model_fields.items() if self._is_stray(name, info.default)]
        if strays:
            raise ValueError(f"{', '.join(strays)} belongs to {other} and means nothing with {use}")
        if self.environment:
            self._can_be_played()
        elif len(self.model) > 1:
            raise ValueError(f"--eval-file measures one model, not {len(self.model)}")
        elif self.output is not None and self.output.is_dir():
            raise ValueError(f"--output {self.output} is a folder; with --eval-file it names a JSON file")
        return self

    def _is_stray(self, name: str, default: Any) -> bool:
        """Whether a setting of the other use was changed; a file that spells out every default is fine."""
        mine = name in OF_BOTH or (name in OF_FILES) == (not self.environment)
        return not mine and getattr(self, name) != default

    def _can_be_played(self) -> None:
        players = [name for name in self.model if name not in BASELINES]
        if self.output is None:
            raise ValueError("--output is required with --environment: the folder for episodes and results")
        if twice := {name for name in self.model if self.model.count(name) > 1}:
            raise ValueError(f"--model {' '.join(sorted(twice))} is given twice")
        if self.adapter is not None and len(self.model) > 1:
            raise ValueError("--adapter goes with one --model; to compare adapters, give their folders as --model")
        if self.attempts > 1 and self.temperature == 0 and players:
            raise ValueError(
                f"--attempts {self.attempts} at temperature 0 would all be the same; give a --temperature above 0"
            )

    def contestant(self, model: str, folder: Path) -> CollectConfig:
        """The settings under which one of the models plays, with its episodes in `folder`."""
        shared = CollectConfig.model_fields.keys() & type(self).model_fields.keys() - {"model", "output"}
        values = {name: getattr(self, name) for name in shared}
        # A server that was told no model's name takes the only one it has.
        named = {"model": model} if "model" in self.model_fields_set or model in BASELINES else {}
        return CollectConfig(**values, **named, output=folder, rescore=0)


class CompareConfig(CertaintyConfig):
    """Compares the results of `bough eval --environment`, matched by task and attempt."""

    files: list[Path] = Field(
        min_length=1, description="result files, or the folders they lie in", json_schema_extra={"positional": True}
    )
    gate: bool = Field(False, description="exit with 1 unless the last model is better than the first for real")
    output: Path | None = Field(None, description="a JSON file for the numbers", json_schema_extra={"short": "-o"})
