"""Settings of `bough evolve`."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AliasChoices, BeforeValidator, Field, JsonValue, model_validator

from bough.config.base import LARGEST, RENAMED, Config, flattened, leaves, parts, setting
from bough.config.flags import plain_type
from bough.config.groups import (
    MODEL,
    REWARDS,
    ClusterConfig,
    LimitsConfig,
    PlayedTasksConfig,
    ReportConfig,
    RewardWeights,
    SamplingConfig,
    key_values,
)
from bough.config.training import TrainingConfig
from bough.config.yaml_file import read_value
from bough.errors import InputError, did_you_mean
from bough.experiments.agilerl import translate
from bough.ledger import plural
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig

# The values that a mutation may give to a setting: a range of numbers, or a list of choices.

DOTS = ".."


@dataclass(frozen=True)
class Span:
    """Numbers from `low` to `high`, `whole` ones or all. A span of positive numbers is drawn on a logarithmic scale."""

    low: float
    high: float
    whole: bool = False

    def draw(self, rng: random.Random, present: Any = None) -> Any:  # noqa: ARG002  any value may come again
        """A value of the whole span."""
        if self.low > 0:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return self._inside(value)

    def perturb(self, present: Any, rng: random.Random, *, shrink: float, grow: float) -> Any:
        """The present value times `shrink` or `grow`, with equal probability, kept inside the span.

        A whole number moves by at least 1. From 0 no factor leads anywhere: a value is drawn instead.
        """
        if present == 0:
            return self.draw(rng)
        factor = rng.choice([shrink, grow])
        value = self._inside(present * factor)
        if self.whole and value == present:
            value = self._inside(present + (1 if factor > 1 else -1))
        return value

    def contains(self, value: Any) -> bool:
        return _is_number(value) and self.low <= value <= self.high

    def nearest(self, value: Any) -> Any:
        """The value of the span that is nearest to a default; the lowest for a setting that is off."""
        return self._inside(value) if _is_number(value) else self._inside(self.low)

    def __str__(self) -> str:
        return f"in {self.low:g}{DOTS}{self.high:g}"

    def _inside(self, value: float) -> Any:
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value


@dataclass(frozen=True)
class Choices:
    """Some values without an order."""

    values: tuple[Any, ...]

    def draw(self, rng: random.Random, present: Any = None) -> Any:
        """Any value but the present one."""
        others = [value for value in self.values if value != present]
        return rng.choice(others) if others else present

    def perturb(self, present: Any, rng: random.Random, *, shrink: float, grow: float) -> Any:  # noqa: ARG002
        return self.draw(rng, present)

    def contains(self, value: Any) -> bool:
        return value in self.values

    def nearest(self, value: Any) -> Any:
        """A default, or the first choice if it is not among them."""
        return value if value in self.values else self.values[0]

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


Range = Span | Choices


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_ranges(given: Any) -> Any:
    """`SETTING=LOW..HIGH` and `SETTING=VALUE,VALUE` arguments of the command line as a mapping.

    In a file the same text, a list of choices, or a mapping with min and max. ValueError says what is wrong.
    """
    if isinstance(given, list):
        words = [str(word).partition("=") for word in given]
        if twice := {key for key, _, _ in words if sum(key == other for other, _, _ in words) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))} is given twice")
        try:
            given = {key: text if DOTS in text else read_value(f"[{text}]") for key, _, text in words}
        except yaml.YAMLError:
            raise ValueError("write each as SETTING=LOW..HIGH or SETTING=VALUE,VALUE") from None
    if not isinstance(given, Mapping):
        return given
    return {str(key): _normal(str(key), value) for key, value in given.items()}


def _normal(key: str, value: Any) -> Any:
    """A range as settings keep it: a mapping with min and max, or a list."""
    if isinstance(value, list) and len(value) > 1:
        # YAML reads 1e-4, without a point, as a text.
        numbers = [_number(one) if isinstance(one, str) else None for one in value]
        return [one if number is None else number for one, number in zip(value, numbers, strict=True)]
    ends = dict(zip(("min", "max"), value.split(DOTS, 1), strict=False)) if isinstance(value, str) else value
    if isinstance(ends, Mapping) and set(ends) == {"min", "max"}:
        low, high = _number(ends["min"]), _number(ends["max"])
        if low is not None and high is not None and low < high:
            return {"min": low, "max": high}
    raise ValueError(
        f"{key}: give a range from a lower to a higher number, such as 1e-6..1e-4 or min and max, or at least two "
        f"choices, such as sigmoid,ipo; not {value!r}"
    )


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


# The settings.


class PopulationConfig(Config):
    """The population."""

    size: int = setting(
        8,
        flag="population_size",
        ge=2,
        le=256,
        validation_alias=AliasChoices("size", "pop_size"),
        description="number of members",
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

    tournament_size: int = Field(2, ge=1, description="members drawn for each tournament")
    elitism: bool = Field(True, description="the fittest member survives unchanged")


class MutationConfig(Config):
    """Mutation of children; the probabilities are relative to each other."""

    mutate: Annotated[dict[str, JsonValue], BeforeValidator(read_ranges)] = Field(
        {},
        description="settings of the method with their ranges or choices, such as learning_rate=1e-6..1e-4 "
        "loss_type=sigmoid,ipo",
    )
    no_mutation: float = Field(0.2, ge=0, description="probability of a child like its parent")
    hyper_parameter: float = Field(0.8, ge=0, description="probability that one setting of --mutate changes")
    shrink_factor: float = Field(0.8, gt=0, lt=1, description="a number is multiplied by this or by grow_factor")
    grow_factor: float = Field(1.2, gt=1, description="a number is multiplied by this or by shrink_factor")
    resample: float = setting(
        0.0,
        flag="resample_probability",
        ge=0,
        le=1,
        description="probability that a mutated setting is drawn from its whole range instead",
    )


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
    tasks: int = setting(64, flag="eval_tasks", ge=1, description="tasks of the environment that all members play")
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

    name: str = setting(
        "",
        flag="environment",
        description="the environment in which members are compared: a name of `bough env list`, module:Class or "
        "path/to/file.py:Class",
    )


class EvolutionTrackingConfig(Config):
    """Trackers."""

    report_to: list[Literal["mlflow", "wandb", "tensorboard"]] = Field(
        [], description="trackers to use in addition to metrics.jsonl"
    )
    wandb_project: str | None = Field(None, description="W&B project and MLflow experiment")


class EvolveConfig(ReportConfig):
    """Evolution of a population of adapters: several are trained with different settings; the fittest on held-out data
    have children with changed settings, and the fittest of the last generation is the result.

    In each generation every member makes some updates with its own settings, then all members
    are compared on the same held-out records or on the same tasks of an environment. Children of
    fit members inherit adapter and optimizer state, and mutate. The winner is measured again on
    records or tasks that no member was selected on.
    """

    command = "evolve"

    recipe: str | None = setting(
        None,
        positional=True,
        exclude=True,
        description="a .yaml file or a shipped recipe with an evolve stage, whose settings the flags change",
    )
    method: Literal["dpo", "sft", "grpo"] = Field(
        "dpo", description="how members are trained: on pairs, on demonstrations, or by playing in the environment"
    )
    model: str = Field("smollm2", description=MODEL)
    train_file: Path | None = Field(None, description="the data of dpo and sft, as for their own commands")
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
        return translate(values) if isinstance(values, Mapping) else values

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """As for every command; the only evolve stage of a recipe stands in for the file."""
        given = dict(overrides or {})
        if (name := given.pop("recipe", None)) is None:
            return super().load(file, given)
        from bough.experiments.recipe import find_recipe, load_recipe, plan, shared_settings

        if file is not None:
            raise InputError("give either a recipe or --config, not both")
        recipe = load_recipe(find_recipe(name), {})
        stages = [stage for stage in plan(recipe) if stage.verb == cls.command]
        if len(stages) != 1:
            count = f"{len(stages)} stages" if stages else "no stage"
            raise InputError(f"the recipe {name} has {count} `evolve`; `bough run` runs whole recipes")
        known = (*leaves(cls), *parts(cls))
        shared = {key: value for key, value in shared_settings(recipe).items() if key in known}
        base = flattened(cls, {"model": recipe.model, "seed": recipe.seed, **shared, **stages[0].settings})
        if "set" in base and "set" in given:
            given["set"] = {**base["set"], **key_values(given["set"])}
        return super().load(None, {**base, **given})

    @property
    def tasks_by_content(self) -> bool:
        """Whether tasks come from a file, whose ids say nothing of what is the same task."""
        return self.environment.task_file is not None or self.fitness.test_task_file is not None

    @property
    def set_batch_size(self) -> int:
        """The tasks or records of an update before any mutation."""
        return trained_by(self, {}).optimizer.batch_size

    @property
    def largest_batch_size(self) -> int:
        """The most tasks or records that an update of any member can have."""
        sizes: Any = self.mutation.mutate.get("batch_size")
        if sizes is None:
            return self.set_batch_size
        return max(self.set_batch_size, int(sizes["max"] if isinstance(sizes, Mapping) else max(sizes)))

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
        if problems := list(self._problems()):
            raise ValueError("; ".join(problems))
        trained_by(self, {})  # what is wrong with the method's own settings is said by them
        if problems := list(range_problems(self)):
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        environment, fitness = self.environment, self.fitness
        if self.method == "grpo" and (self.train_file is not None or not environment.name):
            yield "grpo learns from what members play: it needs an environment, and no train_file"
        elif self.method != "grpo" and self.train_file is None:
            yield f"train_file is required for {self.method}"
        played = self.metric in ("success", "reward")
        if played != bool(environment.name):
            has = "no environment is given" if played else f"metric is {self.metric}"
            yield f"success and reward are measured in an environment, and nothing else is; {has}"
        if self.rewards and self.method != "grpo" and self.metric != "reward":
            yield "rewards have an effect only with method grpo or metric reward"
        if self.metric == "accuracy" and self.method != "dpo":
            yield f"accuracy is that of preferences; {self.method} has none, use metric loss"
        if environment.name and (fitness.eval_file or fitness.test_file):
            yield "eval_file and test_file are not read where fitness is measured in an environment"
        same = environment.split == fitness.test_split and environment.task_file is None
        if environment.name and (same or (environment.task_file and not fitness.test_task_file)):
            yield (
                "the winner would be measured on tasks that it was selected on; "
                "give a test_split other than split, or with task_file a test_task_file"
            )
        population, size, drawn = self.population, self.population.size, self.selection.tournament_size
        if drawn > size:
            yield f"tournament_size is {drawn}, but the population has only {plural(size, 'member')}"
        if not population.halving:
            return
        # Compared with the defaults: the settings that a run has written name all of them.
        if self.selection != SelectionConfig() or population.generations != PopulationConfig().generations:
            yield "halving selects by itself until one member is left; leave out selection and generations"
        if not self.mutation.mutate or population.initial == "same":
            yield "halving compares settings; give their ranges with mutate, and initial must be sampled"


# A member's settings: those of its method, with its own values of what is mutated.

CONFIGS: dict[str, type[TrainingConfig]] = {"dpo": DPOConfig, "sft": SFTConfig, "grpo": GRPOConfig}
# A generation is not the whole run, whose length is not known: the learning rate is a member's setting, not a schedule.
DEFAULTS = {"lr_scheduler": "constant", "warmup_ratio": 0.0}
# Settings that `bough evolve` has itself, or that mean nothing for a member.
OF_THE_RUN = {
    *("model", "train_file", "eval_file", "output_dir", "resume", "overwrite", "seed", "num_epochs", "max_steps"),
    *("save_steps", "save_total_limit", "eval_steps", "early_stopping_patience", "save_best_model"),
    *("logging_steps", "report_to", "wandb_project", "as_json", "adapter"),
    *("rewards", "reward_timeout_s"),
}
# Parts of online training that belong to `bough evolve` too; of its rollouts a member has the size of its groups.
PARTS_OF_THE_RUN = ("environment", "sampler", "held_out", "limits", "rollouts", "cluster")
OF_A_MEMBER = "group_size"
# Of the settings that may be set, those that all members must share: data, base model, machine.
SHARED_PARTS = ("data", "calls", "machine", "curriculum", "lora", "checkpoints", "tracking")
SHARED = {
    *("optimizer", "router_aux_loss_coef", "step_weighted_loss", "use_lora", "qlora", "merge_lora"),
    *("max_new_tokens", "stop"),
}


def trained_by(config: EvolveConfig, own: Mapping[str, Any]) -> TrainingConfig:
    """The settings that train a member whose own values are `own`. ValueError lists what is wrong with them."""
    kind, given = CONFIGS[config.method], _set(config)
    if strays := [name for name in given if name in leaves(kind) and _of_the_run(name, leaves(kind)[name].path[0])]:
        raise ValueError(f"set: {', '.join(strays)} cannot be set for members; bough evolve decides it")
    of_run: dict[str, Any] = {"model": config.model, "output_dir": config.output_dir, "train_file": config.train_file}
    if config.method == "grpo":
        environment = {name: getattr(config.environment, name) for name in ("options", "split", "task_file")}
        sampling = {name: getattr(config.sampling, name) for name in ("max_new_tokens", "stop")}
        of_run |= {
            **environment, **sampling, **config.limits.model_dump(),
            "environment": config.environment.name, "max_steps": LARGEST, "rewards": config.rewards,
        }  # fmt: skip
    try:
        made = kind(**{**DEFAULTS, **of_run, **given, **own})
    except InputError as error:
        raise ValueError("set: " + "; ".join(error.problems or [str(error)])) from None
    lora, machine = made.lora, made.machine
    problem = ""
    if not lora.enabled or lora.qlora or lora.experts or lora.merge:
        problem = "members are plain LoRA adapters: use_lora must be on, qlora, lora_experts and merge_lora off"
    elif machine.shard or machine.compile:
        problem = "shard and compile cannot be used with a population"
    elif isinstance(made, DPOConfig) and made.loss_type == "kto":
        problem = "loss_type kto cannot be evolved: its records are compared with each other, not one by one"
    if problem:
        raise ValueError(f"set: {problem}")
    return made


def _set(config: EvolveConfig) -> dict[str, Any]:
    """The method's settings that the user has given, by their flat names."""
    return flattened(CONFIGS[config.method], {RENAMED.get(key, key): value for key, value in config.set.items()})


def _of_the_run(name: str, part: str) -> bool:
    return name in OF_THE_RUN or (part in PARTS_OF_THE_RUN and name != OF_A_MEMBER)


def is_valid(config: EvolveConfig, own: Mapping[str, Any]) -> bool:
    """Whether a member may have these values together."""
    try:
        trained_by(config, own)
    except ValueError:
        return False
    return True


def own_values(config: EvolveConfig) -> dict[str, Any]:
    """The mutable settings as they are before any mutation: as given, else the value nearest to their default."""
    given, base = _given(config), trained_by(config, {})
    known = leaves(type(base))
    return {
        name: given[name] if name in given else span.nearest(known[name].of(base))
        for name, span in ranges(config).items()
    }


def _given(config: EvolveConfig) -> dict[str, Any]:
    """The values that the user has given to settings that may mutate."""
    made, names = trained_by(config, {}), _set(config)
    return {name: leaf.of(made) for name, leaf in leaves(type(made)).items() if name in names}


def ranges(config: EvolveConfig) -> dict[str, Range]:
    """What the mutable settings may become."""
    known, mutate = leaves(CONFIGS[config.method]), dict[str, Any](config.mutation.mutate)
    return {
        name: Span(value["min"], value["max"], plain_type(known[name].info.annotation) is int)
        if isinstance(value, Mapping)
        else Choices(tuple(value))
        for name, value in mutate.items()
        if name in known
    }


def range_problems(config: EvolveConfig) -> Iterator[str]:
    """What is wrong with the ranges, and with values that are outside them."""
    known, given, spans = leaves(CONFIGS[config.method]), _given(config), ranges(config)
    parts = {name: leaf.path[0] for name, leaf in known.items()}
    mutable = [
        name
        for name, part in parts.items()
        if name not in SHARED and part not in SHARED_PARTS and not _of_the_run(name, part)
    ]
    mutate: dict[str, Any] = dict(config.mutation.mutate)
    for name, value in mutate.items():
        if name not in mutable:
            why = "must be the same for all members" if name in known else f"is not a setting of {config.method}"
            yield f"mutate: {name} {why}{did_you_mean(name, mutable)}; mutable are {', '.join(mutable)}"
            continue
        kind = plain_type(known[name].info.annotation)
        ends = list(value.values()) if isinstance(value, Mapping) else value
        if isinstance(value, Mapping) and kind not in (int, float):
            yield f"mutate: {name} is not a number; give choices"
        elif kind is int and any(isinstance(end, float) and end % 1 for end in ends):
            yield f"mutate: {name} is a whole number; it cannot be {' or '.join(map(str, ends))}"
        elif name in given and not spans[name].contains(given[name]):
            yield f"mutate: {name} is set to {given[name]}, which is not {spans[name]}"
        else:
            for end in ends:
                try:
                    trained_by(config, {name: int(end) if kind is int and isinstance(end, float) else end})
                except ValueError as error:
                    yield f"mutate: {name}={end} is not possible: {error}"
