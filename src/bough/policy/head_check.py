"""The check of a model's own weights before it becomes a policy: one short forward pass.

It finds heads that compute something `Head` does not know, and models that are not causal.
The probe finds the same on a small copy; here it is the model itself, with its adapters,
its quantized layers and whatever was done to its methods.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bough.errors import InputError
from bough.policy.head import Head

PROMPTS = [[0, 1, 2, 3], [0, 1, 2, 4]]
NOT_CAUSAL = (
    "is not a causal language model: its tokens attend to later ones, so it has no log-probabilities of replies; "
    "choose another model"
)
LARGEST_LOGIT = 64.0  # models cap their logits at 15 to 50
LARGEST_FACTOR = 1024.0  # so that half precision does not overflow where the head is nearly zero


@torch.no_grad()
def check_head(model: Any, decoder: Any) -> None:
    """Checks a transformers model, its adapters in place, and the decoder inside it.

    Raises InputError for a model that is not causal, or whose logits `Head` does not reproduce.

    The two prompts differ in their last token, which must not change the hidden states before it.
    """
    head = Head.of(model)
    hidden_BLD, logits_BLV = _enlarged(model, decoder, head)
    name = f"{type(model).__name__} ({model.config.model_type})"
    # Low precision rounds every operation between the hidden states and the logits.
    tolerance = 1e-4 if torch.finfo(model.dtype).eps < 1e-5 else 0.02
    error = 1.0 if hidden_BLD is None else _distance(head.logits(hidden_BLD).float(), logits_BLV)
    if not error <= tolerance:
        raise InputError(
            f"{name} computes its logits in a way that Bough does not know (they differ by {error:.1%}): the "
            "log-probabilities would be wrong, so it can be neither trained nor sampled with the local engine; use "
            "--engine vllm or openai to sample from it"
        )
    assert hidden_BLD is not None
    if not _distance(*hidden_BLD[:, :-1].float()) <= tolerance:
        raise InputError(f"{name} {NOT_CAUSAL}")


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((one - other).abs().max() / other.abs().max())


def _enlarged(model: Any, decoder: Any, head: Head) -> tuple[Tensor | None, Tensor]:
    """Hidden states, scaled up on their way to the head, and the logits the model makes of them.

    A cap that small logits hardly feel shows in large ones.
    """
    seen: list[Tensor] = []

    def enlarge(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        hidden_BLD = output.last_hidden_state
        factor = (LARGEST_LOGIT / head.project(hidden_BLD).abs().max().float()).clamp(1, LARGEST_FACTOR)
        output.last_hidden_state = hidden_BLD * factor.to(hidden_BLD.dtype)
        seen.append(output.last_hidden_state)
        return output

    training = model.training
    model.eval()
    hook = decoder.register_forward_hook(enlarge)
    try:
        prompts = torch.tensor(PROMPTS, device=model.get_input_embeddings().weight.device)
        logits_BLV = model(input_ids=prompts, use_cache=False).logits.float()
    finally:
        hook.remove()
        model.train(training)
    return (seen[0] if seen else None), logits_BLV
