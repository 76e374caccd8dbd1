"""A member's settings: those of its method, with its own values of what is mutated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bough.config.base import LARGEST
from bough.config.flags import plain_type
from bough.config.other_tools import RENAMED
from bough.config.parts import flattened, leaves
from bough.config.rewards import Weight
from bough.config.training import TrainingConfig
from bough.errors import InputError, did_you_mean
from bough.evolution.mixture import FILE, file_weights
from bough.evolution.ranges import Range, make_range
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig

if TYPE_CHECKING:
    from bough.evolution.settings import EvolveConfig

CONFIGS: dict[str, type[TrainingConfig]] = {"dpo": DPOConfig, "sft": SFTConfig, "grpo": GRPOConfig}
# A generation is not the whole run, whose length is not known: the learning rate is a member's setting, not a schedule.
DEFAULTS = {"lr_scheduler": "constant", "warmup_ratio": 0.0}
# Settings that `bough evolve` has itself, or that mean nothing for a member.
OF_THE_RUN = {
    *("model", "train_file", "eval_file", "output_dir", "resume", "overwrite", "seed", "num_epochs", "max_steps"),
    *("save_steps", "save_total_limit", "eval_steps", "early_stopping_patience", "save_best_model"),
    *("logging_steps", "report_to", "wandb_project", "as_json", "precompute_reference", "adapter"),
    *("rewards", "reward_timeout_s"),
}
# Parts of online training that belong to `bough evolve` too; of its rollouts a member has the size of its groups.
PARTS_OF_THE_RUN = ("environment", "sampler", "held_out", "watch", "limits", "rollouts", "cluster")
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
    if isinstance(config, GRPOConfig) and config.entropy_floor is not None:
        return "entropy_floor cannot be used with a population; entropy_coef alone can"
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
