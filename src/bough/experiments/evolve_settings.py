"""Settings of `bough evolve`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, JsonValue, model_validator

from bough.config.base import LARGEST, RENAMED, Config
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
    Weight,
    key_values,
)
from bough.config.parts import flattened, leaves
from bough.config.training import TrainingConfig
from bough.errors import InputError, did_you_mean
from bough.experiments.agilerl import translate
from bough.experiments.ranges import Range, make_range, read_ranges
from bough.ledger import plural
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig

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

    tournament_size: int = Field(2, ge=1, description="members drawn for each tournament")
    elitism: bool = Field(True, description="the fittest member survives unchanged")


class MutationConfig(Config):
    """Mutation of children; the probabilities are relative to each other."""

    mutate: Annotated[dict[str, JsonValue], BeforeValidator(read_ranges)] = Field(
        {},
        description="settings of the method with their ranges or choices, such as learning_rate=1e-6..1e-4 "
        "loss_type=sigmoid,ipo; also weights of rewards (rewards.steps=0..0.5) and files (mixture.NAME=0.5..4)",
    )
    no_mutation: float = Field(0.2, ge=0, description="probability of a child like its parent")
    hyper_parameter: float = Field(0.8, ge=0, description="probability that one setting of --mutate changes")
    shrink_factor: float = Field(0.8, gt=0, lt=1, description="a number is multiplied by this or by grow_factor")
    grow_factor: float = Field(1.2, gt=1, description="a number is multiplied by this or by shrink_factor")
    resample: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability that a mutated setting is drawn from its whole range instead",
        json_schema_extra={"flag": "resample_probability"},
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
    """Evolution of a population of adapters: several are trained with different settings; the fittest on held-out data
    have children with changed settings, and the fittest of the last generation is the result.

    In each generation every member makes some updates with its own settings, then all members
    are compared on the same held-out records or on the same tasks of an environment. Children of
    fit members inherit adapter and optimizer state, and mutate. The winner is measured again on
    records or tasks that no member was selected on.
    """

    command = "evolve"

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
    def _from_elsewhere(cls, values: Any) -> Any:
        return translate(without_removed(values)) if isinstance(values, Mapping) else values

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """As for every command; a recipe's evolve stage stands in for the file."""
        given = dict(overrides or {})
        if (recipe := given.pop("recipe", None)) is None:
            return super().load(file, given)
        from bough.experiments.evolve import stage_settings

        if file is not None:
            raise InputError("give either a recipe or --config, not both")
        base = stage_settings(cls, recipe)
        both = {key: {**base[key], **key_values(given[key])} for key in ("set",) if key in base and key in given}
        return super().load(None, {**base, **given, **both})

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
        if problems := [*self._fitness_problems(), *mixture_problems(self), *self._population_problems()]:
            raise ValueError("; ".join(problems))
        trained_by(self, {})  # what is wrong with the method's own settings is said by them
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


# Settings of earlier versions. A study found that evolving settings is no better than random ones, so only what
# its arms were made of is left: tournaments with elitism, mutation of settings, and successive halving.

REMOVED = {
    "selection": ("name", "truncation", "alpha"),
    "mutation": ("rank", "crossover", "crossover_method", "max_rank"),
}
REMOVED_FLAT = ("truncation", "alpha", "rank_mutation", "crossover", "crossover_method", "max_rank")


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without removed ones that have no effect; InputError where one has."""
    kept = {key: value for key, value in values.items() if key not in REMOVED_FLAT}
    old = {key: value for key, value in values.items() if key in REMOVED_FLAT}
    for part, names in REMOVED.items():
        given = values.get(part)
        if isinstance(given, Mapping):
            kept[part] = {key: value for key, value in given.items() if key not in names}
            old |= {key: value for key, value in given.items() if key in names}
    if isinstance(values.get("selection"), str):
        old["name"] = kept.pop("selection")
    used = [f"selection {old['name']}"] if old.get("name", "tournament") != "tournament" else []
    used += [key for key in ("rank", "rank_mutation", "crossover") if old.get(key)]
    if used:
        raise InputError(
            f"{', '.join(used)} was removed from bough evolve, because no study has shown a gain from it; "
            "tournaments with elitism, mutation of settings and halving are left (docs/results.md)"
        )
    return kept


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
SHARED_PARTS = ("data", "calls", "machine", "curriculum")
SHARED = {
    *("optimizer", "router_aux_loss_coef", "step_weighted_loss", "use_lora", "qlora", "merge_lora"),
    *("max_new_tokens", "stop"),
}
# How the weight of a reward is named among the settings that mutate: rewards.progress.
WEIGHT = "rewards."


def trained_by(config: EvolveConfig, own: Mapping[str, Any]) -> TrainingConfig:
    """The settings that train a member whose own values are `own`. InputError lists what is wrong with them."""
    kind = CONFIGS[config.method]
    given = flattened(kind, {RENAMED.get(key, key): value for key, value in config.set.items()})
    if strays := [name for name in given if name in leaves(kind) and _of_the_run(name, leaves(kind)[name].path[0])]:
        raise ValueError(f"set: {', '.join(strays)} cannot be set for members; bough evolve decides it")
    plain = {name: value for name, value in own.items() if not name.startswith((WEIGHT, FILE))}
    if config.mixture and not any(file_weights(config, own).values()):
        raise ValueError("mixture: at least one weight must be above 0")
    try:
        made = kind(**{**DEFAULTS, **_of_run(config, own), **given, **plain})
    except InputError as error:
        raise ValueError("set: " + "; ".join(error.problems or [str(error)])) from None
    if problem := _no_member(made):
        raise ValueError(f"set: {problem}")
    return made


def _of_run(config: EvolveConfig, own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a member that are those of the run; the weights of rewards may be its own."""
    values: dict[str, Any] = {"model": config.model, "output_dir": config.output_dir}
    if config.method != "grpo":
        return {**values, "train_file": config.train_file or next(iter(config.mixture.values()), None)}
    environment = {name: getattr(config.environment, name) for name in ("options", "split", "task_file")}
    sampling = {name: getattr(config.sampling, name) for name in ("max_new_tokens", "stop")}
    return {
        **values, **environment, **sampling, **config.limits.model_dump(),
        "environment": config.environment.name, "max_steps": LARGEST,
        "rewards": {name: _weighted(given, own.get(WEIGHT + name)) for name, given in config.rewards.items()},
    }  # fmt: skip


def _weighted(given: Weight, weight: float | None) -> Weight:
    """A reward with another weight, if there is one."""
    if weight is None:
        return given
    return {**given, "weight": weight} if isinstance(given, dict) else weight


def _weight(given: Weight) -> Any:
    return given.get("weight", 1.0) if isinstance(given, dict) else given


def _of_the_run(name: str, part: str) -> bool:
    return name in OF_THE_RUN or (part in PARTS_OF_THE_RUN and name != OF_A_MEMBER)


def _no_member(config: TrainingConfig) -> str | None:
    """Why these settings cannot train a member of a population."""
    if not config.lora.enabled or config.lora.qlora or config.lora.experts or config.lora.merge:
        return "members are plain LoRA adapters: use_lora must be on, qlora, lora_experts and merge_lora off"
    if config.machine.fp16 or config.machine.shard or config.machine.compile:
        return "fp16, shard and compile cannot be used with a population"
    if isinstance(config, DPOConfig) and config.loss_type == "kto":
        return "loss_type kto cannot be evolved: its records are compared with each other, not one by one"
    return None


def is_valid(config: EvolveConfig, own: Mapping[str, Any]) -> bool:
    """Whether a member may have these values together."""
    try:
        trained_by(config, own)
    except ValueError:
        return False
    return True


def own_values(config: EvolveConfig) -> dict[str, Any]:
    """The mutable settings as they are before any mutation: as given, else the value nearest to their default."""
    given = _given(config)
    base = trained_by(config, {})
    defaults = {FILE + name: 1.0 for name in config.mixture}
    defaults |= {name: leaf.of(base) for name, leaf in leaves(type(base)).items()}
    return {
        name: given[name] if name in given else span.nearest(defaults[name]) for name, span in ranges(config).items()
    }


def _given(config: EvolveConfig) -> dict[str, Any]:
    """The values that the user has given to settings that may mutate."""
    kind = CONFIGS[config.method]
    names = flattened(kind, {RENAMED.get(key, key): value for key, value in config.set.items()})
    made = trained_by(config, {})
    values = {name: leaf.of(made) for name, leaf in leaves(kind).items() if name in names}
    values |= {FILE + name: weight for name, weight in config.mixture_weights.items()}
    return values | {WEIGHT + name: _weight(weight) for name, weight in config.rewards.items()}


def ranges(config: EvolveConfig) -> dict[str, Range]:
    """What the mutable settings may become."""
    known = leaves(CONFIGS[config.method])
    return {
        name: make_range(value, whole=name in known and plain_type(known[name].info.annotation) is int)
        for name, value in config.mutation.mutate.items()
    }


def range_problems(config: EvolveConfig) -> Iterator[str]:
    """What is wrong with the ranges, and with values that are outside them."""
    if problems := list(_wrong_ranges(config)):
        yield from problems
        return
    given = _given(config)
    for name, span in ranges(config).items():
        if name in given and not span.contains(given[name]):
            yield f"mutate: {name} is set to {given[name]}, which is not {span}"


def _wrong_ranges(config: EvolveConfig) -> Iterator[str]:
    known = leaves(CONFIGS[config.method])
    mutable = [name for name, leaf in known.items() if _mutable(name, leaf.path[0])]
    ranges: dict[str, Any] = dict(config.mutation.mutate)
    for name, value in ranges.items():
        if name.startswith(WEIGHT) and config.method == "grpo":
            if name.removeprefix(WEIGHT) not in config.rewards:
                yield f"mutate: {name} is not the weight of a reward; rewards are {', '.join(config.rewards) or 'none'}"
            else:
                for end in value.values() if isinstance(value, Mapping) else value:
                    yield from _end_problem(config, name, end)
        elif name.startswith(FILE):
            yield from _file_problem(config, name, value)
        elif name not in known:
            yield f"mutate: {config.method} has no setting {name}{did_you_mean(name, mutable)}"
        elif name not in mutable:
            yield f"mutate: {name} must be the same for all members; mutable are {', '.join(mutable)}"
        elif isinstance(value, Mapping) and plain_type(known[name].info.annotation) not in (int, float):
            yield f"mutate: {name} is not a number; give choices"
        else:
            ends = list(value.values()) if isinstance(value, Mapping) else value
            whole = plain_type(known[name].info.annotation) is int
            if whole and isinstance(value, Mapping) and any(end % 1 for end in ends):
                yield f"mutate: {name} is a whole number; its range cannot be {value['min']:g}..{value['max']:g}"
            for end in ends if isinstance(ends, list) else ():
                yield from _end_problem(config, name, int(end) if whole and isinstance(end, float) else end)


def _file_problem(config: EvolveConfig, name: str, value: Any) -> Iterator[str]:
    if name.removeprefix(FILE) not in config.mixture:
        yield f"mutate: {name} is not a file of the mixture; files are {', '.join(config.mixture) or 'none'}"
    ends = value.values() if isinstance(value, Mapping) else value
    if any(isinstance(end, bool) or not isinstance(end, int | float) or end < 0 for end in ends):
        yield f"mutate: {name} is the weight of a file; it must be a number of at least 0"


def _end_problem(config: EvolveConfig, name: str, value: Any) -> Iterator[str]:
    try:
        trained_by(config, {name: value})
    except ValueError as error:
        yield f"mutate: {name}={value} is not possible: {error}"


def _mutable(name: str, part: str) -> bool:
    shared = name in SHARED or part in (*SHARED_PARTS, "lora", "checkpoints", "tracking")
    return not shared and not _of_the_run(name, part)


# Several data files that members learn from, each with a weight: how a batch is put together from them.
#     --mixture own=own.jsonl expert=demos.jsonl --mixture-weights expert=2 --mutate mixture.expert=0.5..4
# A member has its own weights. Its records come from the files in proportion to them, spread as evenly as the weights
# allow. Nothing is drawn at random, so a run that resumes finds its place by counting.

# How the weight of a file is named among the settings that mutate: mixture.expert.
FILE = "mixture."


def file_weights(config: EvolveConfig, own: Mapping[str, Any]) -> dict[str, float]:
    """The weights of the files for a member whose own values are `own`; 1 where none is given."""
    given = config.mixture_weights
    return {name: float(own.get(FILE + name, given.get(name, 1.0))) for name in config.mixture}


def mixture_problems(config: EvolveConfig) -> Iterator[str]:
    """What is wrong with the files and their weights."""
    if not config.mixture:
        if config.mixture_weights:
            yield "mixture_weights needs mixture, the files that have these weights"
        return
    if config.method == "grpo":
        yield "grpo learns from what members play; leave out mixture"
    elif config.train_file is not None:
        yield "give either train_file or mixture, not both"
    if len(config.mixture) < 2:
        yield "a mixture has at least two files; give a single one as train_file"
    if wrong := [name for name in config.mixture if not name.isidentifier()]:
        yield f"mixture: {', '.join(wrong)} cannot be the name of a file; use letters, digits and _"
    if unknown := [name for name in config.mixture_weights if name not in config.mixture]:
        known = ", ".join(config.mixture)
        yield f"mixture_weights: {', '.join(unknown)} is not a file of the mixture; files are {known}"
    if not any(file_weights(config, {}).values()):
        yield "mixture_weights: at least one must be above 0"


class Mixer:
    """Which file each record of a member comes from: always the one that is furthest behind its share."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        total = sum(weights.values())
        self.shares = {name: weight / total for name, weight in weights.items() if weight > 0}
        self._taken = dict.fromkeys(self.shares, 0)
        self._picks: list[tuple[str, int]] = []

    def picks(self, begin: int, end: int) -> Sequence[tuple[str, int]]:
        """For the records from `begin` to `end` of a member: the file, and how many came from it before."""
        while len(self._picks) < end:
            wanted = len(self._picks) + 1
            name = max(self.shares, key=lambda one: self.shares[one] * wanted - self._taken[one])
            self._picks.append((name, self._taken[name]))
            self._taken[name] += 1
        return self._picks[begin:end]
