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
from bough.policy.reach import freeze_surroundings
from bough.policy.reconcile import grow
from bough.policy.routing import coefficient
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
    temperature: float | None = 1.0,
) -> Policy:
    """The policy as the run begins or resumes.

    `start` is the adapter that the run starts from. With `reference` it is also kept as it
    was, beside the one that is trained. `temperature` is that of the log-probabilities; None: each
    call's own.
    """
    name = base_and_adapter(config.model)[0]
    actor = start
    if resumed:
        log.warning("Resuming from step %d.", resumed.step)
        name, actor = (name, resumed.weights) if config.lora.enabled else (str(resumed.weights), None)
    torch.manual_seed(config.seed)  # a new adapter is drawn at random
    device = processes.device
    _check_machine(config, device)
    autocast = precision(config, device)
    # Frozen weights may be in the type they are computed with; in trained ones small steps must not round to nothing.
    dtype = autocast if autocast and config.lora.enabled else torch.float32
    # A model that is sharded may be too large for one GPU until it is.
    place = torch.device("cpu") if config.machine.shard else device
    model = load_model(name, dtype=dtype, device=place, quantize=config.lora.qlora)
    if config.machine.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if not config.lora.enabled:
        freeze_surroundings(model)
    elif actor is None:
        model = add_actor(model, lora(config.lora))
    elif resumed or not config.lora.merge:
        model = load_actor(model, actor, dropout=config.lora.dropout)
    else:
        model = grow(model, actor, lora(config.lora))
    if reference and start:
        add_reference(model, start)
    policy = Policy(
        model,
        attention=config.machine.attention,
        autocast=autocast,
        compile=bool(config.machine.compile),
        device=device,
    )
    policy.temperature = temperature
    policy.router_coefficient = _router_coefficient(config, policy)
    if config.machine.shard:
        policy.shard(device)
    return policy


def _router_coefficient(config: TrainingConfig, policy: Policy) -> float:
    weight = coefficient(policy.decoder, config.optimizer.router_aux_loss_coef)
    if weight and config.machine.compile:
        raise InputError(
            "--compile does not go with the load-balancing loss of a mixture of experts; add --router-aux-loss-coef 0"
        )
    return weight


def _check_machine(config: TrainingConfig, device: torch.device) -> None:
    """InputError that lists all settings that do not go with the machine or with each other."""
    machine = config.machine
    together = ["--qlora"] if config.lora.qlora else []
    together += ["--compile"] if machine.compile else []
    together += ["--cuda-graphs"] if machine.cuda_graphs else []
    together += [f"--optimizer {config.optimizer.name}"] if config.optimizer.name != "adamw" else []
    problems = [f"--shard does not go with {name}" for name in together if machine.shard]
    if machine.shard and not torch.distributed.is_initialized():
        problems.append("--shard needs several processes: accelerate launch --num_processes 2 -m bough …")
    elif machine.shard and device.type == "cuda" and torch.distributed.get_backend() == "gloo":
        problems.append("--shard needs a GPU for each process: gloo, by which processes share a GPU, cannot do it")
    if machine.cuda_graphs:
        problems += [f"--cuda-graphs does not go with {name}" for name in not_recorded(config)]
    if machine.fp16 and machine.bf16:
        problems.append("--fp16 and --bf16 exclude each other")
    on_cuda = {
        "--compile": machine.compile,
        "--cuda-graphs": machine.cuda_graphs,
        "--fp16": machine.fp16,
        "--qlora": config.lora.qlora,
    }
    if device.type != "cuda":
        problems += [f"{name} needs a CUDA device; this is {device.type}" for name, given in on_cuda.items() if given]
    if problems:
        raise InputError("these settings cannot be used here:", problems)


def not_recorded(config: TrainingConfig) -> list[str]:
    """Settings that rule out CUDA graphs; what of a model does, `Layers.not_recordable` knows."""
    given = {
        "--gradient-checkpointing": config.machine.gradient_checkpointing,
        "--qlora": config.lora.qlora,
        "--lora-dropout": config.lora.enabled and config.lora.dropout > 0,
    }
    return [name for name, holds in given.items() if holds]


def precision(config: TrainingConfig, device: torch.device) -> torch.dtype | None:
    """The type that matrix products are computed in, None for float32."""
    if config.machine.fp16:
        return torch.float16
    bf16 = device.type == "cuda" if config.machine.bf16 is None else config.machine.bf16
    return torch.bfloat16 if bf16 else None
