"""Several adapters on one small model, each also as a policy of its own to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bough.config.groups import SamplingConfig
from bough.engines.local.engine import LocalEngine
from bough.policy.adapters import AdapterWeights, Lora, add_actor
from bough.policy.policy import Policy
from tests.engines.local.playing import hash_of, prompt

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
# Ranks and layers differ, and so does the scale.
LORAS = {
    "red": Lora(r=4, alpha=8),
    "green": Lora(r=3, alpha=12, targets=("q_proj", "v_proj", "down_proj")),
    "blue": Lora(r=16, alpha=16, targets=("o_proj", "up_proj")),
    "grey": Lora(r=1, alpha=4, targets=ATTENTION),
}


def with_actor(model: Any, lora: Lora, seed: int) -> Policy:
    """The model with an adapter that changes what it says."""
    model = add_actor(model, lora)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    return Policy(model, attention="sdpa", probe=False).eval()


def with_diverged_actor(model: Any, lora: Lora) -> Policy:
    """The model with an adapter whose weights are finite, and what it computes is not."""
    policy = with_actor(model, lora, 0)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_" in name:
                weight.fill_(1e25)
    return policy


def members(build: Callable[[], Any], loras: dict[str, Lora] = LORAS) -> dict[str, Policy]:
    """A policy by the name of its adapter; the empty name is the base."""
    policies = {name: with_actor(build(), lora, seed) for seed, (name, lora) in enumerate(loras.items())}
    return {"": Policy(build(), attention="sdpa", probe=False).eval()} | policies


def set_all(engine: LocalEngine, policies: dict[str, Policy]) -> None:
    for name, policy in policies.items():
        if name:
            engine.set_adapter(name, AdapterWeights.of(policy.model))


async def play_as(
    engine: LocalEngine, adapter: str, name: str, turns: int, sampling: SamplingConfig, start: Any
) -> Any:
    """An episode as in `playing.play`, computed with an adapter."""
    ids, calls = [*start, *prompt(name, 7)], []
    for turn in range(turns):
        drawn = await engine.generate(
            name, ids, sampling=sampling, seed=hash_of(name) + turn, stop_ids=[2], adapter=adapter
        )
        calls.append((ids, drawn))
        ids = ids + drawn.completion_ids + prompt(f"{name}/{turn}", 5 + turn)
    return calls
