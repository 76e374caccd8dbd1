"""Settings of `bough evolve`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, JsonValue, model_validator

from bough.config.base import Config
from bough.config.calls import MODEL
from bough.config.cluster import ClusterConfig
from bough.config.environment import PlayedTasksConfig, key_values
from bough.config.report import ReportConfig
from bough.config.rewards import REWARDS, RewardWeights
from bough.config.rollouts import LimitsConfig
from bough.config.sampling import SamplingConfig
from bough.errors import InputError
from bough.evolution import agilerl
from bough.evolution.member_settings import range_problems, trained_by
from bough.evolution.mixture import mixture_problems
from bough.evolution.ranges import read_ranges
from bough.plural import plural

NonNegative = Annotated[float, Field(ge=0)]


class PopulationConfig(Config):
    """The population."""

    size: int = Field(
        8,
        ge=2,
        le=256,
        validation_alias=AliasChoices("size", "pop_size"),
        description="number of members",
        json_schema_extra={"flag": "population_size"},
    )
    generations: int = Field(5, ge=1, description="number of generations; a resumed run may have more")
    steps: int = Field(
        20,
        ge=1,
        validation_alias=AliasChoices("steps", "evo_steps"),
        description="updates of each member per generation",
    )
    initial: Literal["sampled", "same"] = Field(
        "sampled",
        description="settings of the first generation: drawn from the ranges of --mutate (one member keeps the given "
        "ones), or the given ones for all",
    )
    halving: bool = Field(
        False,
        description="successive halving: no children; each generation keeps the better half for twice the updates",
    )


class SelectionConfig(Config):
    """Selection."""

    name: Literal["tournament", "truncation", "confident"] = Field(
        "tournament",
        description="tournament: children of tournament winners replace all but the elite; truncation: children of the "
        "best replace the worst; confident: only members shown to be worse by a sequential test are replaced",
        json_schema_extra={"flag": "selection"},
    )
    tournament_size: int = Field(2, ge=1, description="members drawn for each tournament")
    elitism: bool = Field(True, description="the fittest member lives on unchanged")
    truncation: float = Field(0.25, gt=0, le=0.5, description="share of the members that truncation replaces")
    alpha: float = Field(
        0.05, gt=0, lt=1, description="confident: share of generations in which a replacement may be wrong"
    )


class MutationConfig(Config):
    """Mutation of children; the probabilities are relative to each other."""

    mutate: Annotated[dict[str, JsonValue], BeforeValidator(read_ranges)] = Field(
        {},
        description="settings of the method with their ranges or choices, such as learning_rate=1e-6..1e-4 "
        "loss_type=sigmoid,ipo; also weights of rewards (rewards.steps=0..0.5) and files (mixture.NAME=0.5..4)",
    )
    no_mutation: float = Field(0.2, ge=0, description="probability of a child like its parent")
    hyper_parameter: float = Field(0.8, ge=0, description="probability that one setting of --mutate changes")
    rank: float = Field(
        0.0,
        ge=0,
        description="probability that the rank of the adapter doubles, without changing its output",
        json_schema_extra={"flag": "rank_mutation"},
    )
    crossover: float = Field(0.0, ge=0, description="probability that a child merges the adapters of two parents")
    crossover_method: Literal["average", "ties"] = Field("average", description="how two adapters are merged")
    shrink_factor: float = Field(0.8, gt=0, lt=1, description="a number is multiplied by this or by grow_factor")
    grow_factor: float = Field(1.2, gt=1, description="a number is multiplied by this or by shrink_factor")
    resample: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability that a mutated setting is drawn from its whole range instead",
        json_schema_extra={"flag": "resample_probability"},
    )
    max_rank: int = Field(64, ge=1, description="largest rank that a mutation leads to")


class FitnessConfig(Config):
    """Fitness: what members are selected by."""

    metric: Literal["auto", "accuracy", "loss", "success", "reward"] = Field(
        "auto",
        description="success or reward in the environment; preference accuracy or negative loss on held-out records "
        "(auto: success with --environment, accuracy for dpo, loss for sft)",
    )
    eval_file: Path | None = Field(None, description="held-out records that members are compared on")
    test_file: Path | None = Field(
        None, description="records for the last measurement of the winner, on which no member was selected"
    )
    test_size: float = Field(
        0.1, gt=0, lt=0.5, description="without eval_file: this share of train_file is held out, without test_file too"
    )
    tasks: int = Field(
        64, ge=1, description="tasks of the environment that all members play", json_schema_extra={"flag": "eval_tasks"}
    )
    test_split: str = Field("unseen", description="split of the tasks for the last measurement of the winner")
    test_task_file: Path | None = Field(None, description="tasks for that measurement from a JSON Lines file instead")
    concurrency: int = Field(32, ge=1, description="episodes played at the same time")
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")


class BudgetConfig(Config):
    """Budget: no generation begins after one of these is used up."""

    max_updates: int | None = Field(None, ge=1, description="updates of all members together, empty ones too")
    max_tokens: int | None = Field(None, ge=1, description="tokens computed in training and sampled")
    max_minutes: float | None = Field(None, gt=0, description="minutes, those before a resume included")


class FitnessEnvironmentConfig(PlayedTasksConfig):
    """Environment in which fitness is measured."""

    name: str = Field(
        "",
        description="the environment in which members are compared: a name of `bough env list`, module:Class or "
        "path/to/file.py:Class",
        json_schema_extra={"flag": "environment"},
    )


class EvolutionTrackingConfig(Config):
    """Trackers."""

    report_to: list[Literal["mlflow", "wandb", "tensorboard"]] = Field(
        [], description="trackers to use in addition to metrics.jsonl; mlflow has a child run per member"
    )
    wandb_project: str | None = Field(None, description="W&B project and MLflow experiment")


class EvolveConfig(ReportConfig):
    """Trains a population of adapters on one base model and breeds it by fitness.

    In each generation every member makes some updates with its own settings, then all members
    are compared on the same held-out records or on the same tasks of an environment. Children of
    fit members inherit adapter and optimizer state, and mutate. The winner is measured again on
    records or tasks that no member was selected on.
    """

    recipe: str | None = Field(
        None,
        exclude=True,
        description="a .yaml file or a shipped recipe with an evolve stage, whose settings the flags change",
        json_schema_extra={"positional": True},
    )
    method: Literal["dpo", "sft", "grpo"] = Field(
        "dpo", description="how members are trained: on pairs, on demonstrations, or by playing in the environment"
    )
    model: str = Field("smollm2", description=MODEL)
    train_file: Path | None = Field(None, description="the data of dpo and sft, as for their own commands")
    mixture: Annotated[dict[str, Path], BeforeValidator(key_values)] = Field(
        {}, description="several data files in place of train_file, as NAME=FILE; a batch has records of all of them"
    )
    mixture_weights: Annotated[dict[str, NonNegative], BeforeValidator(key_values)] = Field(
        {}, description="how often records of each file are used, relative to the others, as NAME=WEIGHT (default: 1)"
    )
    set: Annotated[dict[str, JsonValue], BeforeValidator(key_values)] = Field(
        {}, description="settings of the method for all members, as for its own command: learning_rate=1e-5 beta=0.1"
    )
    output_dir: Path = Field(Path("runs/evolve"), description="the run folder")
    resume: bool = Field(False, description="resume from the newest generation in the run folder")
    overwrite: bool = Field(False, description="delete the run that is in the run folder")
    seed: int = Field(42, ge=0, description="random seed of selection, mutation, the data's order and new adapters")
    population: PopulationConfig = PopulationConfig()
    selection: SelectionConfig = SelectionConfig()
    mutation: MutationConfig = MutationConfig()
    fitness: FitnessConfig = FitnessConfig()
    budget: BudgetConfig = BudgetConfig()
    environment: FitnessEnvironmentConfig = FitnessEnvironmentConfig()
    sampling: SamplingConfig = SamplingConfig(temperature=0.0)
    limits: LimitsConfig = LimitsConfig()
    cluster: ClusterConfig = ClusterConfig()
    rewards: RewardWeights = Field({}, description=REWARDS)
    tracking: EvolutionTrackingConfig = EvolutionTrackingConfig()

    @model_validator(mode="before")
    @classmethod
    def _from_agilerl(cls, values: Any) -> Any:
        return agilerl.translate(values) if isinstance(values, Mapping) else values

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """As for every command; a recipe's evolve stage stands in for the file."""
        given = dict(overrides or {})
        if (recipe := given.pop("recipe", None)) is None:
            return super().load(file, given)
        from bough.evolution.recipe import stage_settings

        if file is not None:
            raise InputError("give either a recipe or --config, not both")
        base = stage_settings(cls, recipe)
        both = {key: {**base[key], **key_values(given[key])} for key in ("set",) if key in base and key in given}
        return super().load(None, {**base, **given, **both})

    @property
    def set_batch_size(self) -> int:
        """The tasks or records of an update before any mutation."""
        optimizer = trained_by(self, {}).optimizer
        return optimizer.batch_size * optimizer.gradient_accumulation_steps

    @property
    def largest_batch_size(self) -> int:
        """The most tasks or records that an update of any member can have."""
        ranges: dict[str, Any] = dict(self.mutation.mutate)
        most = {
            name: int(value["max"] if isinstance(value, Mapping) else max(value))
            for name, value in ranges.items()
            if name in ("batch_size", "gradient_accumulation_steps")
        }
        optimizer = trained_by(self, most).optimizer
        return max(self.set_batch_size, optimizer.batch_size * optimizer.gradient_accumulation_steps)

    @property
    def metric(self) -> str:
        """What fitness is, where the settings leave it open."""
        if self.fitness.metric != "auto":
            return self.fitness.metric
        if self.environment.name or self.method == "grpo":
            return "success"
        return "accuracy" if self.method == "dpo" else "loss"

    @model_validator(mode="after")
    def _members_can_be_trained(self) -> Self:
        if problems := [*self._fitness_problems(), *mixture_problems(self), *self._population_problems()]:
            raise ValueError("; ".join(problems))
        # What is wrong with the method's own settings is said by them.
        optimizer = trained_by(self, {}).optimizer.name
        if self.mutation.rank and optimizer != "adamw":
            raise ValueError(f"rank_mutation needs optimizer adamw: the moments of {optimizer} cannot grow")
        if problems := list(range_problems(self)):
            raise ValueError("; ".join(problems))
        return self

    def _fitness_problems(self) -> list[str]:
        problems = []
        if self.method == "grpo" and self.train_file is not None:
            problems.append("grpo learns from what members play; leave out train_file")
        if self.method == "grpo" and not self.environment.name:
            problems.append("environment is required for grpo, whose members learn from what they play")
        elif self.method != "grpo" and self.train_file is None and not self.mixture:
            problems.append(f"train_file is required for {self.method}, or a mixture of files")
        played = self.metric in ("success", "reward")
        if played != bool(self.environment.name):
            has = "no environment is given" if played else f"metric is {self.metric}"
            problems.append(f"success and reward are measured in an environment, and nothing else is; {has}")
        if self.rewards and self.method != "grpo" and self.metric != "reward":
            problems.append("rewards have an effect only with method grpo or metric reward")
        if self.metric == "accuracy" and self.method != "dpo":
            problems.append(f"accuracy is that of preferences; {self.method} has none, use metric loss")
        if self.metric in ("loss", "reward") and self.selection.name == "confident":
            problems.append(
                f"selection confident needs values in a known range: accuracy or success, not {self.metric}"
            )
        if self.environment.name and (self.fitness.eval_file or self.fitness.test_file):
            problems.append("eval_file and test_file are not read where fitness is measured in an environment")
        same = self.environment.split == self.fitness.test_split and self.environment.task_file is None
        if self.environment.name and (same or (self.environment.task_file and not self.fitness.test_task_file)):
            problems.append(
                "the winner would be measured on tasks that it was selected on; "
                "give a test_split other than split, or with task_file a test_task_file"
            )
        return problems

    def _population_problems(self) -> list[str]:
        problems = []
        # Compared with the defaults: the settings that a run has written name all of them.
        if self.population.halving and self.selection != SelectionConfig():
            problems.append("halving is a selection of its own; leave out the settings of selection")
        if self.population.halving and self.population.generations != PopulationConfig().generations:
            problems.append("halving ends when one member is left; leave out generations")
        if self.population.halving and not self.mutation.mutate:
            problems.append("halving compares settings; give their ranges with mutate")
        if self.population.halving and self.population.initial == "same":
            problems.append("halving compares settings; initial must be sampled")
        size, drawn = self.population.size, self.selection.tournament_size
        if drawn > size:
            problems.append(f"tournament_size is {drawn}, but the population has only {plural(size, 'member')}")
        return problems
