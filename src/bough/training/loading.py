"""The policy that a run trains: the base model, its adapter, its reference, in the right place and precision."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from bough.config.training import TrainingConfig
from bough.errors import InputError
from bough.policy.adapters import add_actor, add_reference, load_actor
from bough.policy.load import base_and_adapter, load_model
from bough.policy.policy import Policy
from bough.policy.processes import Processes
from bough.policy.reconcile import grow
from bough.policy.shape import lora
from bough.training.checkpoint import Checkpoint

log = logging.getLogger(__name__)


def load_policy(
    config: TrainingConfig,
    start: Path | None,
    resumed: Checkpoint | None,
    processes: Processes,
    *,
    reference: bool,
    temperature: float = 1.0,
) -> Policy:
    """The policy as the run begins or resumes.

    `start` is the adapter that the run starts from. With `reference` it is also kept as it
    was, beside the one that is trained. `temperature` is that of the log-probabilities.
    """
    name = base_and_adapter(config.model)[0]
    actor = start
    if resumed:
        log.warning("Resuming from step %d.", resumed.step)
        name, actor = (name, resumed.weights) if config.use_lora else (str(resumed.weights), None)
    torch.manual_seed(config.seed)  # a new adapter is drawn at random
    device = processes.device
    _check_machine(config, device)
    autocast = precision(config, device)
    # Frozen weights may be in the type they are computed with; in trained ones small steps must not round to nothing.
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
    if reference and start:
        add_reference(model, start)
    policy = Policy(model, attention=config.attention, autocast=autocast, compile=config.compile, device=device)
    policy.temperature = temperature
    if config.shard:
        policy.shard(device)
    return policy


def _check_machine(config: TrainingConfig, device: torch.device) -> None:
    """InputError that lists all settings that do not go with the machine or with each other."""
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


def precision(config: TrainingConfig, device: torch.device) -> torch.dtype | None:
    """The type that matrix products are computed in, None for float32."""
    if config.fp16:
        return torch.float16
    bf16 = device.type == "cuda" if config.bf16 is None else config.bf16
    return torch.bfloat16 if bf16 else None
