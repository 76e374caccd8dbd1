"""How many tokens a forward pass reads where the settings do not say: as many as the GPU's memory allows.

Small passes leave a large GPU idle, too large ones run out of memory. What a token keeps for the
backward pass is estimated from the model's shape, deliberately high; should it be too low all
the same, the loop halves the budget. Where a sampler works beside training, the same estimate says
how much memory it leaves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from bough.config.training import BUDGET_ON_CPU, TrainingConfig
from bough.policy.gpu_memory import unused_bytes
from bough.policy.load import base_and_adapter, load_outline
from bough.policy.processes import Processes

log = logging.getLogger(__name__)
# Past the upper bound nothing gets faster; the lower one holds a few calls.
LEAST, MOST, STEP = 1024, 65_536, 1024
# Of what is left beside the weights. The rest is for the head's logits, kernels' work space and fragmentation.
SHARE = 0.6
# Online the sampler keeps the histories of all episodes in the same memory.
SHARE_ONLINE = 0.3
# Passes that are recorded as CUDA graphs have memory of their own, beside that of passes that are not.
WITH_GRAPHS = 0.5
# Bytes that a token leaves for the backward pass in each layer, bfloat16 with norms in float32: per unit of the
# hidden size (two norms, residuals, query, key, value, attention) and of the size inside the MLP (gate, up,
# activation, product). Adapters keep their inputs and small products too.
PER_HIDDEN, PER_INNER, WITH_ADAPTER = 34, 8, 1.3
# Bytes of a weight: itself in float32, its gradient and two moments, and a copy in bfloat16 to compute with.
TRAINED, TRAINED_8BIT, FROZEN, FROZEN_4BIT = 18, 12, 2, 0.6
SAMPLED = 4  # of a copy of trained weights
# Of a trained weight that is loaded already: its gradient, two moments, and a copy in bfloat16.
BESIDE_WEIGHT = 14


@dataclass(frozen=True)
class Shape:
    """What of a model decides the memory that training takes."""

    parameters: int
    layers: int
    hidden: int
    inner: int

    @classmethod
    def of(cls, model: Any) -> Shape:
        """The shape of a transformers model; its weights may be absent."""
        config = model.config.get_text_config()
        hidden = int(config.hidden_size)
        inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
        experts = getattr(config, "num_experts_per_tok", None)
        if experts:
            inner = max(inner, int(experts) * int(getattr(config, "moe_intermediate_size", None) or inner))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return cls(parameters, int(config.num_hidden_layers), hidden, inner)


def budget_for(
    shape: Shape,
    free_bytes: int,
    *,
    lora_r: int | None,
    weight_bytes: float,
    gradient_checkpointing: bool = False,
    share: float = SHARE,
) -> int:
    """Tokens per forward pass, for a GPU with `free_bytes` before the model is loaded.

    `lora_r` is the rank of the adapter that is trained, None where all weights are;
    `weight_bytes` is what a weight of the model takes, with its gradient and moments if it is trained.
    """
    adapter = (lora_r or 0) * shape.layers * (9 * shape.hidden + 3 * shape.inner)
    left = free_bytes - shape.parameters * weight_bytes - adapter * TRAINED
    fits = int(left * share / _token_bytes(shape, adapter=bool(lora_r), gradient_checkpointing=gradient_checkpointing))
    return min(MOST, max(LEAST, fits // STEP * STEP))


def training_bytes(model: Any, token_budget: int, *, adapter: bool, gradient_checkpointing: bool = False) -> int:
    """What training takes beside the weights of a loaded model, for passes of `token_budget` tokens."""
    trained = sum(int(weight.numel()) for weight in model.parameters() if weight.requires_grad)
    token = _token_bytes(Shape.of(model), adapter=adapter, gradient_checkpointing=gradient_checkpointing)
    return trained * BESIDE_WEIGHT + int(token_budget * token / SHARE)


def _token_bytes(shape: Shape, *, adapter: bool, gradient_checkpointing: bool) -> int:
    """What a token keeps for the backward pass."""
    layer = PER_HIDDEN * shape.hidden + PER_INNER * shape.inner
    layer = int(layer * WITH_ADAPTER) if adapter else layer
    # With checkpointing each layer keeps its input, and one layer at a time is computed again.
    return layer + shape.layers * 4 * shape.hidden if gradient_checkpointing else layer * shape.layers


def choose_budget(config: TrainingConfig, processes: Processes) -> int:
    """The budget of a run whose settings name none. Logged, since memory and speed depend on it."""
    if processes.device.type != "cuda":
        return BUDGET_ON_CPU
    shape = Shape.of(load_outline(base_and_adapter(config.model)[0]))
    free = unused_bytes(processes.device, processes.per_gpu)
    found = min(processes.gather([fitting(config, shape, free, processes.count)]))  # one number in the run's settings
    if processes.first:
        log.warning("token_budget: %d (%.0f GiB of GPU memory are free).", found, free / 2**30)
    return found


def fitting(config: TrainingConfig, shape: Shape, free_bytes: int, num_processes: int = 1) -> int:
    """Tokens per pass that fit into the free memory of a GPU with these settings."""
    environment = getattr(config, "environment", None)
    if config.lora.enabled:
        weight = FROZEN_4BIT if config.lora.qlora else FROZEN
    else:
        weight = TRAINED if config.optimizer.name == "adamw" else TRAINED_8BIT
    if config.machine.shard:
        # Online, the first process has a whole copy of the weights to sample with.
        copy = FROZEN if config.lora.enabled else SAMPLED
        weight = weight / num_processes + (copy if environment and environment.name else 0)
    return budget_for(
        shape,
        free_bytes,
        lora_r=config.lora.r if config.lora.enabled else None,
        weight_bytes=weight,
        gradient_checkpointing=config.machine.gradient_checkpointing,
        share=(SHARE_ONLINE if environment else SHARE) * (WITH_GRAPHS if config.machine.cuda_graphs else 1),
    )
