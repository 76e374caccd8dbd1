"""Settings of `bough eval` and `bough compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from bough.config.base import Config
from bough.config.groups import (
    AgentConfig,
    ClusterConfig,
    CollectConfig,
    LimitsConfig,
    PlayedTasksConfig,
    ReportConfig,
    SamplingConfig,
)
from bough.config.parts import Leaf, leaves
from bough.config.problems import flag

BASELINES = ("expert", "random")
# Settings of both uses; those of the held-out file belong to --eval-file, all others to --environment.
OF_BOTH = ("model", "chat_template", "output", "eval_file", "environment", "as_json")


def _several(value: Any) -> Any:
    """A single name, as a list."""
    return [value] if isinstance(value, str) else value


class StatisticsConfig(Config):
    """Statistics."""

    level: float = Field(
        0.95, gt=0.5, lt=1, description="confidence level of the intervals; tests use the significance level 1 - level"
    )
    against: Literal["first", "all"] = Field(
        "first", description="compare every model with the first one, or all pairs of models"
    )


class EvaluatedEnvironmentConfig(PlayedTasksConfig):
    """Environment and tasks."""

    name: str = Field(
        "",
        description="the environment to play in: a name of `bough env list`, module:Class or path/to/file.py:Class",
        json_schema_extra={"flag": "environment"},
    )
    split: str = Field("unseen", description="the split to draw tasks from: train, seen or unseen")


class ContestantsConfig(AgentConfig):
    """The agents."""

    model: Annotated[list[str], BeforeValidator(_several)] = Field(  # type: ignore[assignment]
        ["smollm2"],
        min_length=1,
        description="a model, the folder of an adapter, expert or random; give several to compare them",
    )


class HeldOutFileConfig(Config):
    """A held-out file instead of an environment."""

    file: Path | None = Field(
        None,
        description="held-out data, in any format that `bough data formats` lists",
        json_schema_extra={"flag": "eval_file"},
    )
    format: str = Field("auto", description="format of the held-out file")
    token_budget: int = Field(4096, ge=128, description="tokens per forward pass, shared tokens counted once")
    max_length: int | None = Field(
        None, ge=8, description="maximum length of a call in tokens (default: the model's context)"
    )
    stride: float = Field(
        0.25, ge=0, lt=1, description="fraction of max_length to free each time old steps are dropped"
    )


class EvalConfig(ReportConfig):
    """Evaluates models by playing in an environment, or by their likelihood of the replies in a held-out file.

    With --environment every model plays the same tasks with the same seeds; the report has
    success rates with confidence intervals and paired tests between models. With --eval-file
    it has the perplexity, token accuracy and preference accuracy of one model.
    """

    environment: EvaluatedEnvironmentConfig = EvaluatedEnvironmentConfig()
    agent: ContestantsConfig = ContestantsConfig()
    sampling: SamplingConfig = SamplingConfig(temperature=0.0)
    limits: LimitsConfig = LimitsConfig()
    cluster: ClusterConfig = ClusterConfig()
    statistics: StatisticsConfig = StatisticsConfig()
    held_out: HeldOutFileConfig = HeldOutFileConfig()
    seed: int = Field(0, ge=0, description="random seed of the tasks and of sampling")
    tasks: int = Field(
        100,
        ge=1,
        validation_alias=AliasChoices("tasks", "episodes"),
        description="number of tasks; each is played --attempts times",
    )
    attempts: int = Field(1, ge=1, description="attempts at each task, for pass@k and pass^k")
    stop_width: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="stop early at this width of the confidence interval, which is then valid at any stopping time",
    )
    concurrency: int = Field(16, ge=1, description="episodes played at the same time")
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")
    overwrite: bool = Field(False, description="delete the episodes in the output folder first")
    output: Path | None = Field(
        None,
        description="with --environment a folder, in which a stopped evaluation resumes; with --eval-file a JSON file",
        json_schema_extra={"short": "-o"},
    )

    @model_validator(mode="after")
    def _one_use_and_what_belongs_to_it(self) -> Self:
        played = bool(self.environment.name)
        if played == (self.held_out.file is not None):
            what = "both are" if played else "neither is"
            raise ValueError(
                f"give either --environment or --agent (to play) or --eval-file (to measure likelihoods); {what} given"
            )
        use, other = ("--environment", "--eval-file") if played else ("--eval-file", "--environment")
        strays = [flag(leaf.flat) for leaf in leaves(type(self)).values() if self._is_stray(leaf)]
        if strays:
            raise ValueError(f"{', '.join(strays)} only has a meaning with {other}, not with {use}")
        if played:
            self._can_be_played()
        elif len(self.agent.model) > 1:
            raise ValueError(f"--eval-file takes one model, not {len(self.agent.model)}")
        elif self.output is not None and self.output.is_dir():
            raise ValueError(f"--output {self.output} is a folder; with --eval-file it must be a JSON file")
        return self

    def _is_stray(self, leaf: Leaf) -> bool:
        """Whether a setting of the other use was changed; a file that lists every default is fine."""
        mine = leaf.flat in OF_BOTH or (leaf.part is HeldOutFileConfig) == (not self.environment.name)
        return not mine and leaf.of(self) != leaf.default

    def _can_be_played(self) -> None:
        players = [name for name in self.agent.model if name not in BASELINES]
        if self.output is None:
            raise ValueError("--output is required with --environment: the folder for episodes and results")
        if twice := {name for name in self.agent.model if self.agent.model.count(name) > 1}:
            raise ValueError(f"--model {' '.join(sorted(twice))} is given twice")
        if self.agent.adapter is not None and len(self.agent.model) > 1:
            raise ValueError("--adapter needs a single --model; to compare adapters, give their folders as --model")
        if self.attempts > 1 and self.sampling.temperature == 0 and players:
            raise ValueError(
                f"--attempts {self.attempts} at temperature 0 would all be the same; give a --temperature above 0"
            )

    def contestant(self, model: str, folder: Path) -> CollectConfig:
        """The settings for one of the models, with its episodes in `folder`."""
        shared = leaves(CollectConfig).keys() - {"model", "output", "as_json"}
        values = {name: leaf.of(self) for name, leaf in leaves(type(self)).items() if name in shared}
        # A server that is given no model name uses the only model it has.
        named = {"model": model} if "model" in self.agent.model_fields_set or model in BASELINES else {}
        return CollectConfig(**values, **named, output=folder, rescore=0)


class CompareConfig(ReportConfig):
    """Compares results of `bough eval --environment`, matched by task and attempt."""

    statistics: StatisticsConfig = StatisticsConfig()
    files: list[Path] = Field(
        min_length=1,
        description="result files, or the folders that contain them",
        json_schema_extra={"positional": True},
    )
    gate: bool = Field(False, description="exit with 1 unless the last model is significantly better than the first")
    gate_by_type: bool = Field(
        False, description="with --gate: also exit with 1 if the last model is significantly worse on any type of task"
    )
    output: Path | None = Field(
        None, description="also write the report to this JSON file", json_schema_extra={"short": "-o"}
    )

    @model_validator(mode="after")
    def _types_are_of_the_gate(self) -> Self:
        if self.gate_by_type and not self.gate:
            raise ValueError("--gate-by-type needs --gate")
        return self
