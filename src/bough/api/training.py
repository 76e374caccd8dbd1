"""`bough.sft`, `bough.dpo`, `bough.grpo`, `bough.distill`: train a model on records, or in an environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bough.api.inputs import (
    AgentLike,
    EnvironmentLike,
    Rewards,
    Source,
    StrPath,
    is_path,
    records_of,
    reward_weights,
    where_to_play,
)
from bough.api.models import LoadedModel, ModelLike, TemporaryFolder, TrainedModel, model_name
from bough.api.settings import make_config, settings_of
from bough.config.training import TrainingConfig
from bough.methods.distill import DistillConfig
from bough.methods.dpo import DPOConfig
from bough.methods.examples import IN_MEMORY
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig
from bough.rundir import RunDir
from bough.train import distill as train_distill
from bough.train import dpo as train_dpo
from bough.train import grpo as train_grpo
from bough.train import sft as train_sft
from bough.training.metrics_file import MetricsFile
from bough.training.run import Trained


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
