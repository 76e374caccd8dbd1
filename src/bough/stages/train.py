"""A training stage from its settings to an adapter on disk; the three methods differ only in their examples."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bough import bit_exact
from bough.calls.builder import CallBuilder
from bough.calls.template import ChatTemplate, load_template
from bough.config.training import DPOConfig, GRPOConfig, SFTConfig, TrainingConfig
from bough.config.yaml_file import YamlFile
from bough.disk import write_json
from bough.errors import InputError
from bough.models.context import context_length
from bough.policy.adapters import add_actor, add_reference, load_actor
from bough.policy.load import base_and_adapter, load_model
from bough.policy.policy import Policy
from bough.policy.processes import Processes
from bough.policy.reconcile import grow
from bough.policy.saving import save_policy
from bough.policy.shape import lora, start_adapter
from bough.rundir import RunDir
from bough.stages.dpo import DPOObjective, preferences
from bough.stages.examples import Examples
from bough.stages.grpo import GRPOObjective, groups
from bough.stages.online import OnlineSource
from bough.stages.sft import SFTObjective, demonstrations
from bough.terminal.training import TrainingProgress
from bough.tracking.trackers import Trackers
from bough.training.checkpoint import Checkpoint, checkpoints
from bough.training.counters import Counters
from bough.training.loop import Trainer
from bough.training.objective import Objective
from bough.training.origin import Origin
from bough.training.source import FileSource

log = logging.getLogger(__name__)
# Settings that do not change what is computed.
UNIMPORTANT = {"resume", "overwrite", "output_dir", "logging_steps", "save_steps", "save_total_limit", "report_to"}
# Settings that say what shape the trained weights have, which a checkpoint of them has settled.
SHAPE = {"use_lora", "lora_r", "lora_alpha", "lora_target_modules"}
Reader = Callable[[Any, CallBuilder, bool], Examples[Any]]


@dataclass(frozen=True)
class Trained:
    """The result of a stage: the weights' folder, the counters at the end, and what became of its rows."""

    weights: Path
    counters: Counters
    ledgers: list[dict[str, Any]]


def sft(config: SFTConfig) -> Trained:
    """Supervised fine-tuning on trajectories."""
    return _train(config, SFTObjective(), demonstrations)


def dpo(config: DPOConfig) -> Trained:
    """Preference optimisation on pairs."""
    return _train(config, DPOObjective(config), preferences)


def grpo(config: GRPOConfig) -> Trained:
    """Group-relative policy optimisation on groups of attempts: on file, or played with the newest weights."""
    if config.environment is None:
        return _train(config, GRPOObjective(config), groups)
    return _train(config, GRPOObjective(config, online=True), None)


def _train(config: Any, objective: Objective[Any], read: Reader | None) -> Trained:
    """The whole stage, with the run folder to itself. Without `read` the examples come from playing."""
    run, processes = RunDir(config.output_dir), Processes()
    with run.locked() if processes.first else nullcontext():
        return _train_alone(config, objective, read, run, processes)


def _train_alone(
    config: Any, objective: Objective[Any], read: Reader | None, run: RunDir, processes: Processes
) -> Trained:
    if processes.first:
        _make_room(run, config)
    processes.wait()
    resumed = _newest_checkpoint(run, config)
    if resumed and processes.device.type == "cpu":
        bit_exact.warn_if_runs_differ()
    start, config = start_adapter(config)
    if processes.first and config.resume and run.config.exists():
        _tell_changes(run, config, resumed)
    base = base_and_adapter(config.model)[0]
    template = load_template(base, config.chat_template)
    builder = CallBuilder(template, max_length=config.max_length, stride=config.stride, context=context_length(base))
    training = read(config, builder, False) if read else Examples[Any]()
    held_out = read(config, builder, True) if read and config.eval_file else Examples[Any]()
    origin = Origin.of(config, start, training.digest, held_out.digest)
    same_held_out = _check_origin(run, config, start, origin, resumed)
    processes.wait()
    if processes.first:
        run.create(config)
        origin.write(run)
    needs_reference = objective.needs_reference or read is None  # to measure how far it has come
    policy = _load_policy(config, start, resumed, processes, needs_reference=needs_reference)
    source = FileSource(training.examples, config) if read else _play(config, policy, template, run, processes)
    names = config.report_to if processes.first else []
    with (
        Trackers(names, run.path, config.wandb_project, config.model_dump()) as trackers,
        TrainingProgress() as progress,
    ):

        def tell(values: dict[str, Any]) -> None:
            if processes.first:
                progress.tell(values)
                trackers.log(values)

        trainer = Trainer(
            policy, objective, source, config, run, partial(save_policy, policy, template.tokenizer),
            held_out=held_out.examples, processes=processes, tell=tell,
        )  # fmt: skip
        if processes.first:
            progress.begin(len(source), *([training.rows, training.calls] if read else []))
        if isinstance(source, FileSource):
            afresh = partial(_afresh, config, processes) if resumed and not config.use_lora else None
            _precompute(trainer, source, config, origin, afresh)
        try:
            counters = trainer.train(resumed, same_held_out=same_held_out)
        finally:
            if isinstance(source, OnlineSource):
                source.close()
    accounts = source.ledgers if isinstance(source, OnlineSource) else [training.rows, training.calls]
    ledgers = [account.to_json() for account in accounts]
    if read is None and resumed and resumed.step == counters.step and run.ledger.exists():  # nothing was left to play
        ledgers = json.loads(run.ledger.read_text(encoding="utf-8"))
    if processes.first:
        write_json(run.ledger, ledgers)
        write_json(run.report, asdict(counters) | {"weights": run.final.name})
    return Trained(run.final, counters, ledgers)


def _play(
    config: GRPOConfig, policy: Policy, template: ChatTemplate, run: RunDir, processes: Processes
) -> OnlineSource:
    if processes.count > 1:
        raise InputError("--environment plays in one process only; leave out accelerate launch")
    if config.kl_coef and not config.use_lora:
        raise InputError("--kl-coef with --environment needs an adapter: without --use-lora no start policy is kept")
    if config.watch and not config.use_lora:
        log.warning("--watch-kl is off: without --use-lora no start policy is kept to measure a divergence from.")
    return OnlineSource(config, policy, template, run)


def _make_room(run: RunDir, config: TrainingConfig) -> None:
    """A folder with a run in it is only overwritten on request."""
    if config.resume or not run.used:
        return
    if not config.overwrite:
        raise InputError(
            f"{run.path} holds a run already; --resume continues it, --overwrite deletes it, "
            "--output-dir names another folder"
        )
    run.clear()


def _newest_checkpoint(run: RunDir, config: TrainingConfig) -> Checkpoint | None:
    """The checkpoint to resume from, whole."""
    found = checkpoints(run.checkpoints) if config.resume else []
    if not found:
        if config.resume:
            log.warning("%s holds no checkpoint yet; starting from the beginning.", run.path)
        return None
    found[-1].check()
    return found[-1]


def _tell_changes(run: RunDir, config: TrainingConfig, resumed: Checkpoint | None) -> None:
    """A run may resume with other settings, but not in silence."""
    before = YamlFile.read(run.config).values
    now = config.model_dump(mode="json")
    changed = {
        k: f"{k} {before[k]} → {v}" for k, v in now.items() if k not in UNIMPORTANT and k in before and before[k] != v
    }
    if resumed and (fixed := [change for k, change in changed.items() if k in SHAPE]):
        raise InputError(f"{resumed.path} holds weights of another shape; a run keeps the one it began with:", fixed)
    if changed:
        log.warning("Resuming with other settings than the run began with: %s.", "; ".join(changed.values()))


def _check_origin(
    run: RunDir, config: TrainingConfig, start: Path | None, origin: Origin, resumed: Checkpoint | None
) -> bool:
    """A run resumes only with the weights and the data it began with; returns whether the held-out data is the same."""
    if resumed is None:
        return True
    before = Origin.read(run)
    if differences := origin.differences(before, config, start):
        raise InputError(
            f"{run.path} cannot resume. To train its weights on something else, start a new run: "
            f"--model {resumed.weights} and another --output-dir. What has changed:", differences,
        )  # fmt: skip
    if before.held_out and origin.held_out and before.held_out != origin.held_out:
        log.warning("The held-out examples have changed; the best eval loss so far counts no more.")
    return before.held_out == origin.held_out


def _load_policy(
    config: TrainingConfig,
    start: Path | None,
    resumed: Checkpoint | None,
    processes: Processes,
    *,
    needs_reference: bool,
) -> Policy:
    """The policy as the run begins or resumes: the base, its actor, and a reference where the start is an adapter."""
    name = base_and_adapter(config.model)[0]
    actor = start
    if resumed:
        log.warning("Resuming from step %d.", resumed.step)
        name, actor = (name, resumed.weights) if config.use_lora else (str(resumed.weights), None)
    torch.manual_seed(config.seed)  # a new adapter is drawn at random
    device = processes.device
    _check_machine(config, device)
    autocast = _precision(config, device)
    # Frozen weights may be as small as they are computed with; trained ones must not round small steps away.
    dtype = autocast if autocast and config.use_lora else torch.float32
    # A model that is sharded may be too large for one GPU until it is.
    place = torch.device("cpu") if config.shard else device
    model = load_model(name, dtype=dtype, device=place, quantize=config.qlora)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if actor is None:
        model = add_actor(model, lora(config)) if config.use_lora else model
    elif resumed or not config.merge_lora:
        model = load_actor(model, actor, dropout=config.lora_dropout)
    else:
        model = grow(model, actor, lora(config))
    if needs_reference and start:
        add_reference(model, start)
    policy = Policy(model, attention=config.attention, autocast=autocast, compile=config.compile, device=device)
    if isinstance(config, GRPOConfig):
        policy.temperature = config.temperature
    if config.shard:
        policy.shard(device)
    return policy


def _check_machine(config: TrainingConfig, device: torch.device) -> None:
    """All settings that do not go with the machine or with each other."""
    together = [f"--{name}" for name in ("qlora", "compile") if getattr(config, name)]
    together += [f"--optimizer {config.optimizer}"] if config.optimizer != "adamw" else []
    problems = [f"--shard does not go with {name}" for name in together if config.shard]
    if config.shard and not torch.distributed.is_initialized():
        problems.append("--shard needs several processes: accelerate launch --num_processes 2 -m bough …")
    if config.fp16 and config.bf16:
        problems.append("--fp16 and --bf16 exclude each other")
    problems += [
        f"--{name} needs a CUDA device; this is {device.type}"
        for name in ("compile", "fp16")
        if getattr(config, name) and device.type != "cuda"
    ]
    if problems:
        raise InputError("these settings cannot be used here:", problems)


def _precision(config: TrainingConfig, device: torch.device) -> torch.dtype | None:
    """The type that matrix products are computed in, None for float32."""
    if config.fp16:
        return torch.float16
    bf16 = device.type == "cuda" if config.bf16 is None else config.bf16
    return torch.bfloat16 if bf16 else None


def _afresh(config: TrainingConfig, processes: Processes) -> Policy:
    """The model that a run of all weights began with: beside the trained one there is room for it, as for gradients."""
    log.warning("No reference for these settings and this data is on file; computing it from %s again.", config.model)
    return _load_policy(config, None, None, processes, needs_reference=False)


def _precompute(
    trainer: Trainer,
    source: FileSource,
    config: TrainingConfig,
    origin: Origin,
    afresh: Callable[[], Policy] | None,
) -> None:
    """Reference log-probabilities in advance: where asked for, and where all weights are trained."""
    if trainer.reference is None or (config.use_lora and not getattr(config, "precompute_reference", False)):
        return
    calls = [call for example in [*source.examples, *trainer.held_out] for call in example.calls]
    precision = _precision(config, trainer.processes.device)
    name = f"{origin.model}|{origin.adapter}|{precision}|{config.qlora}"
    trainer.reference.compute(calls, config.token_budget, trainer.run.cache, name, start=afresh)
