"""Whether a run compiles the layers and records its passes, where the settings leave that open.

On a GPU both make the steps of a small model several times faster. Compiling takes a minute or two first, so
only a long run gains from it. Recordings take memory, which a large model needs for its rows.
Numbers may differ in their last bits, so what was chosen stands in the run's settings, and --resume repeats it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from bough.config.training import MachineConfig, TrainingConfig
from bough.policy.gpu_memory import unused_bytes
from bough.policy.load import base_and_adapter, load_outline
from bough.policy.processes import Processes
from bough.policy.reach import decoder_of
from bough.policy.recorded import uses_dropout
from bough.policy.routing import Routers
from bough.training.loading import not_recorded
from bough.training.source import PlannedSource
from bough.training.token_budget import Shape, fitting
from bough.trees.build import TokenTree
from bough.trees.layers import branching_obstacle
from bough.trees.mixers import known_mixers

log = logging.getLogger(__name__)
COMPILING_S = 90  # on an H200, with nothing in the cache
# What compiled layers save on an H200 for a token, a layer and a unit of the hidden size: the same for SmolLM2 and for
# the shape of Qwen3-4B, because they save traffic to memory. A slower GPU saves more.
SAVED_S = 2.3e-10
# A recording takes about a second for each length of row.
FEWEST_STEPS = 100
# Parameters. The kernels of larger models take longer than Python takes to start them.
LARGEST_RECORDED = 2 * 10**9
# Shorter rows share less, and cost more than recordings gain.
SHORTEST_ROWS = 8192
SAMPLED = 4  # batches that are looked at, to know how many tokens a step has


@dataclass(frozen=True)
class Work:
    """What a run will compute."""

    num_steps: int
    num_tokens: float

    @classmethod
    def of(cls, source: PlannedSource) -> Work:
        """All steps, as many tokens each as the first few have."""
        sizes: list[int] = []
        for step in range(min(SAMPLED, len(source))):
            if step and not source.knows(step):
                break
            calls = [call for example in source.batch(step).examples for call in example.calls]
            sizes.append(len(TokenTree.of(calls)))
        return cls(len(source), len(source) * sum(sizes) / max(1, len(sizes)))


def accelerated(config: TrainingConfig, processes: Processes, source: PlannedSource | None) -> MachineConfig:
    """The settings of the machine with nothing left open about compiling and recording.

    Without `source` the run samples what it learns from: the sampler needs the memory, and what will be
    computed is not known.
    """
    machine = config.machine
    if machine.compile is not None and machine.cuda_graphs is not None:
        return machine
    if processes.device.type != "cuda" or source is None:
        return machine.model_copy(update={"compile": bool(machine.compile), "cuda_graphs": bool(machine.cuda_graphs)})
    outline = load_outline(base_and_adapter(config.model)[0])
    work = processes.first_does(lambda: Work.of(source))
    free = min(processes.gather([unused_bytes(processes.device, processes.per_gpu)]))
    machine, reasons = choose(config, outline, free, work)
    if processes.first:
        log.warning("%s.", "; ".join(reasons))
    return machine


def choose(config: TrainingConfig, model: Any, free_bytes: int, work: Work) -> tuple[MachineConfig, list[str]]:
    """The same on a GPU, and in words what was chosen and why. The model's weights may be absent."""
    machine, shape = config.machine, Shape.of(model)
    saved_s = work.num_tokens * shape.layers * shape.hidden * SAVED_S
    why_not = {
        "compile": _why_not_compiled(config, model, saved_s),
        "cuda_graphs": _why_not_recorded(config, model, shape, free_bytes, work),
    }
    gains = {"compile": f"{COMPILING_S} s once, to save about {saved_s / 60:.0f} min; ", "cuda_graphs": ""}
    left_open = [name for name in why_not if getattr(machine, name) is None]
    reasons = [
        f"{name}: off ({why_not[name]})"
        if why_not[name]
        else f"{name}: on ({gains[name]}--no-{name.replace('_', '-')} turns it off)"
        for name in left_open
    ]
    return machine.model_copy(update={name: why_not[name] is None for name in left_open}), reasons


def _why_not_compiled(config: TrainingConfig, model: Any, saved_s: float) -> str | None:
    if found := _of_both(config, model):
        return found
    if saved_s < 2 * COMPILING_S:
        return f"it takes {COMPILING_S} s and would save about {saved_s:.0f} s"
    return None


def _why_not_recorded(config: TrainingConfig, model: Any, shape: Shape, free_bytes: int, work: Work) -> str | None:
    if found := _of_both(config, model) or next(iter(not_recorded(config)), None):
        return found
    if config.machine.attention == "sdpa" or not config.machine.share or branching_obstacle(decoder_of(model)):
        return "rows are not computed with FlexAttention"
    if work.num_steps < FEWEST_STEPS:
        return f"the run has fewer than {FEWEST_STEPS} steps"
    if shape.parameters > LARGEST_RECORDED:
        return "the model is large enough to keep the GPU busy"
    recorded = config.machine.model_copy(update={"cuda_graphs": True})
    fits = fitting(config.model_copy(update={"machine": recorded}), shape, free_bytes)
    if fits < (config.machine.token_budget or SHORTEST_ROWS):
        return "its memory is needed for longer rows"
    return None


def _of_both(config: TrainingConfig, model: Any) -> str | None:
    """What neither is chosen for: compiled code does not hear routers, and the rest has not been tried."""
    decoder = decoder_of(model)
    found = {
        "--shard": config.machine.shard,
        "--qlora": config.lora.qlora,
        "dropout": uses_dropout(model) or (config.lora.enabled and config.lora.dropout > 0),
        "a mixture of experts": Routers.of(decoder) is not None,
        "layers that carry state": bool(known_mixers(decoder)),
    }
    return next((name for name, holds in found.items() if holds), None)
