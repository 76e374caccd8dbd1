"""`bough.sft`, `bough.dpo`, `bough.grpo`, `bough.distill`: train a model on records, or in an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bough.commands.models import LoadedModel, ModelLike, TemporaryFolder, TrainedModel, model_name
from bough.commands.objects import (
    AgentLike,
    EnvironmentLike,
    Rewards,
    Source,
    StrPath,
    is_path,
    make_config,
    records_of,
    reward_weights,
    settings_of,
    where_to_play,
)
from bough.config.groups import ReportConfig
from bough.config.run_folder import RunDir
from bough.config.training import TrainingConfig
from bough.ledger import plural
from bough.methods.distill import DistillConfig
from bough.methods.dpo import DPO, DPOConfig
from bough.methods.examples import IN_MEMORY
from bough.methods.grpo import GRPO, GRPOConfig
from bough.methods.kto import KTO
from bough.methods.sft import SFT, SFTConfig
from bough.policy.processes import Processes
from bough.terminal import console
from bough.training.loop import MetricsFile
from bough.training.method import Data
from bough.training.run import Trained, train


@settings_of(SFTConfig, "train_file")
def sft(
    model: ModelLike,
    records: Source,
    *,
    eval_file: Source | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train a model to answer as the trajectories did.

    `model` is a name, a folder, a trained or a loaded model. `records` are trajectories in
    memory, or the path of a file or folder in any format that `bough data formats` lists;
    `eval_file` are held-out ones, whose loss is measured during training.

    The run folder is `output_dir`. Without it the weights are in a temporary folder that is
    removed with the returned object; its `save` copies them.
    """
    return _train("sft", train_sft, SFTConfig, model, records, eval_file, output_dir, settings)


@settings_of(DPOConfig, "train_file")
def dpo(
    model: ModelLike,
    records: Source,
    *,
    eval_file: Source | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train a model to prefer the chosen side of pairs to the rejected one.

    `records` are pairs, in memory or on file; the other arguments are those of `bough.sft`.
    """
    return _train("dpo", train_dpo, DPOConfig, model, records, eval_file, output_dir, settings)


@settings_of(GRPOConfig, "train_file", "own_agent")
def grpo(
    model: ModelLike,
    records: Source | None = None,
    *,
    environment: EnvironmentLike | None = None,
    agent: AgentLike | None = None,
    rewards: Rewards | None = None,
    eval_file: Source | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train a model on how much better than its group each attempt was.

    `records` are groups, in memory or on file. With `environment`, a name or a class,
    instead of records the model plays there, learns from what it played and plays again;
    give `max_steps` then. With `agent`, your own function that plays a task against an address,
    it learns from what that function asked it. `rewards` are names or functions, as in `bough.collect`. The other
    arguments are those of `bough.sft`.
    """
    play = where_to_play(environment, agent)
    play |= {"rewards": reward_weights(rewards)} if rewards else {}
    return _train("grpo", train_grpo, GRPOConfig, model, records, eval_file, output_dir, settings | play)


@settings_of(DistillConfig, "train_file", "own_agent")
def distill(
    model: ModelLike,
    teacher: ModelLike,
    records: Source | None = None,
    *,
    environment: EnvironmentLike | None = None,
    agent: AgentLike | None = None,
    rewards: Rewards | None = None,
    eval_file: Source | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train a student on its own episodes to answer with a teacher's distribution.

    `teacher` is a model with the student's tokenizer by name, folder or loaded, or the address
    of a server. With `environment`, a name or a class, or your own `agent`, the student plays
    there and learns from what it played; give `max_steps` then. `records` are episodes or groups
    instead, in memory or on file. The other arguments are those of `bough.grpo`.
    """
    play = where_to_play(environment, agent)
    play |= {"rewards": reward_weights(rewards)} if rewards else {}
    kept = TemporaryFolder()
    from_ = teacher.save(kept.path / "teacher") if isinstance(teacher, LoadedModel) else teacher
    play |= {"teacher": model_name(from_)}
    trained = _train("distill", train_distill, DistillConfig, model, records, eval_file, output_dir, settings | play)
    del kept  # the weights of a loaded teacher are no longer needed
    return trained


def _train(
    method: str,
    work: Callable[..., Trained],
    config_class: type[TrainingConfig],
    model: ModelLike,
    records: Source | None,
    eval_file: Source | None,
    output_dir: StrPath | None,
    settings: dict[str, Any],
) -> TrainedModel:
    temporary = TemporaryFolder()
    start = model.save(temporary.path / "start") if isinstance(model, LoadedModel) else model
    folder = Path(output_dir) if output_dir is not None else temporary.path / method
    config = make_config(
        config_class, method, settings,
        model=model_name(start), output_dir=folder, train_file=_file(records), eval_file=_file(eval_file),
    )  # fmt: skip
    trained = work(config, _data(records), _data(eval_file))
    run = RunDir(folder)
    name = model.name if isinstance(model, LoadedModel | TrainedModel) else model_name(model)
    return TrainedModel(
        f"{name}+{method}", trained.weights,
        metrics=MetricsFile.read(run.metrics), report=asdict(trained.counters), ledgers=trained.ledgers,
        keeps=(temporary, model),  # the run refers to the weights it started from
    )  # fmt: skip


def _file(source: Source | None) -> Path | None:
    """What the settings say of data: its path, or a word for records in memory."""
    if source is None:
        return None
    return Path(source) if is_path(source) else Path(IN_MEMORY)


def _data(source: Source | None) -> Any:
    """Records that are in memory; None where the settings name a file, or there is none."""
    return None if source is None or is_path(source) else records_of(source)


# `bough sft`, `bough dpo`, `bough grpo` and `bough distill`.

# Metrics that the closing lines compare, first against last, and what they are called there.
COMPARED = {
    "accuracy": "accuracy",
    "reward": "reward",
    "success": "success",
    "eval_loss": "held-out loss",
    "eval_accuracy": "held-out accuracy",
    "eval_success": "held-out success",
}


def sft_command(config: SFTConfig) -> int:
    return _report(config, train_sft(config))


def dpo_command(config: DPOConfig) -> int:
    return _report(config, train_dpo(config))


def grpo_command(config: GRPOConfig) -> int:
    return _report(config, train_grpo(config))


def distill_command(config: DistillConfig) -> int:
    return _report(config, train_distill(config))


@dataclass(frozen=True)
class Change:
    """A metric's first and last value in a run, and its lowest."""

    first: float
    last: float
    lowest: float

    @classmethod
    def of(cls, name: str, lines: list[dict[str, Any]]) -> Change | None:
        """The change of a metric over the logged lines; None where it was never measured."""
        values = [line[name] for line in lines if line.get(name) is not None]
        return cls(values[0], values[-1], min(values)) if values else None


def _report(config: ReportConfig, trained: Trained) -> int:
    """Prints the result, in one process for all."""
    if not Processes().first:
        return 0
    lines = MetricsFile.read(trained.weights.parent / "metrics.jsonl")
    changes = {name: change for name in ("loss", *COMPARED) if (change := Change.of(name, lines)) is not None}
    if config.as_json:
        console.print_json(_json(trained, changes, _sampling(lines)))
    else:
        _print(trained, changes, _sampling(lines))
    return 0


def _print(trained: Trained, changes: dict[str, Change], sampling: dict[str, float]) -> None:
    counters, out = trained.counters, console.out()
    if loss := changes.get("loss"):
        out.print(f"loss {loss.first:.4g} → {loss.last:.4g} in {plural(counters.step, 'step')}")
    for name, shown in COMPARED.items():
        if change := changes.get(name):
            lowest = f" (lowest {change.lowest:.4g})" if name == "eval_loss" and change.lowest < change.last else ""
            digits = 4 if name == "eval_loss" else 3
            out.print(f"{shown} {change.first:.{digits}g} → {change.last:.{digits}g}{lowest}")
    for line in _sampling_lines(sampling):
        out.print(line)
    shared = counters.tokens_raw / max(1, counters.tokens_computed)
    computed = f"{counters.tokens_computed:,} computed, {shared:.1f}× fewer than without sharing"
    out.print(f"{plural(counters.tokens_trained, 'token')} trained; {computed}")
    out.print(f"weights in {trained.weights}", markup=False)


def _sampling(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Where the time of an online run went, over all its batches; empty for other runs."""
    batches = [line for line in lines if "batch_seconds" in line]
    seconds = sum(batch["batch_seconds"] for batch in batches)
    if not seconds:
        return {}
    means = (
        *("sampling_share", "training_share", "overlap_share", "idle_share"),
        *("sampled_tokens_per_s", "episodes_in_flight"),
    )
    return {
        **{name: sum(batch.get(name, 0.0) * batch["batch_seconds"] for batch in batches) / seconds for name in means},
        "staleness_mean": fmean(batch.get("staleness_mean", 0.0) for batch in batches),
        "staleness_max": max(batch.get("staleness_max", 0) for batch in batches),
        "calls_stale": batches[-1].get("calls_stale", 0),
        "calls_off_policy": sum(batch.get("calls_off_policy", 0) for batch in batches),
    }


def _sampling_lines(sampling: dict[str, float]) -> Iterator[str]:
    if not sampling:
        return
    both = f"{sampling['overlap_share']:.0%} both, " if sampling["overlap_share"] else ""
    yield (
        f"{sampling['sampling_share']:.0%} of the time sampling, {sampling['training_share']:.0%} training, "
        f"{both}{sampling['idle_share']:.0%} idle"
    )
    yield (
        f"{sampling['sampled_tokens_per_s']:,.0f} tokens/s sampled over the whole run, "
        f"{sampling['episodes_in_flight']:.3g} episodes in flight"
    )
    if sampling["staleness_max"] or sampling["calls_stale"]:
        yield (
            f"staleness {sampling['staleness_mean']:.2g} batches on average, {sampling['staleness_max']} at most; "
            f"{plural(sampling['calls_stale'], 'call')} dropped as too old"
        )
    if sampling["calls_off_policy"]:
        yield f"{plural(sampling['calls_off_policy'], 'call')} sampled with top_p, top_k or min_p: slightly off-policy"


def _json(trained: Trained, changes: dict[str, Change], sampling: dict[str, float]) -> dict[str, Any]:
    counters = trained.counters
    return {
        "weights": str(trained.weights),
        "steps": counters.step,
        "metrics": {name: {"first": change.first, "last": change.last} for name, change in changes.items()},
        "best_eval_loss": counters.best_loss,
        "tokens_trained": counters.tokens_trained,
        "tokens_computed": counters.tokens_computed,
        "tokens_without_sharing": counters.tokens_raw,
        "ledgers": trained.ledgers,
    } | ({"sampling": sampling} if sampling else {})


# Every method by its settings: on data or, for GRPO and distillation, in an environment.


def train_sft(config: SFTConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Supervised fine-tuning on trajectories: those of the settings' files, or the data given here."""
    return train(config, SFT(config), data, held_out)


def train_dpo(config: DPOConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Preference optimisation on pairs, or with KTO on single trajectories: of the settings' files, or given here."""
    return train(config, KTO(config) if config.loss_type == "kto" else DPO(config), data, held_out)


def train_grpo(config: GRPOConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Group-relative policy optimisation on groups: given here, on file, or played in the settings' environment."""
    if config.environment.name is not None:
        from bough.methods.grpo_online import train_online

        return train_online(config)
    return train(config, GRPO(config), data, held_out)


def train_distill(config: DistillConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Distillation from a teacher on episodes: given here, on file, or played in the settings' environment."""
    from bough.methods.teacher import distill as train_student

    return train_student(config, data, held_out)
