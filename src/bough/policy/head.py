"""From hidden states to log-probabilities without ever holding [tokens x vocabulary] logits.

The head runs over the predictions in chunks and never keeps more logits than one chunk's,
however many tokens were answered. A frozen head is not run twice for it: a prediction is
one number that depends on one hidden state, so its whole derivative is one vector, taken
while the chunk's logits are at hand. A trained head needs its logits in the backward pass
too: the last chunk's are still there, those before are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 2**26  # 256 MiB in float32; at a vocabulary of 150,000 still rows enough to keep a GPU busy
# A trained head gets a gradient of its weights from every chunk, and those are as large as many logits: on a large GPU
# fewer chunks are faster. Bytes of memory for each logit of a chunk.
MEMORY_PER_LOGIT = 512


@dataclass(frozen=True)
class Head:
    """A model's output layer, and what the model does to its logits afterwards.

    The layer is called as the module it is: it may be tied, quantized or carry an adapter.
    Predictions are of the logits divided by `temperature`.
    """

    layer: nn.Module
    vocabulary: int
    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, model: Any, temperature: float = 1.0) -> Head:
        """The head of a transformers model, with the scaling and capping that its config names."""
        config = model.config.get_text_config()
        scale = (getattr(config, "logit_scale", None) or 1.0) * (getattr(config, "lm_head_multiplier", None) or 1.0)
        scale /= getattr(config, "logits_scaling", None) or 1.0
        layer = model.get_output_embeddings()
        return cls(layer, config.vocab_size, scale, getattr(config, "final_logit_softcapping", None), temperature)

    @property
    def trained(self) -> bool:
        return any(parameter.requires_grad for parameter in self.layer.parameters())

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """The logits [M, V], as the model itself would return them."""
        logits_MV = self.project(hidden_MD)
        if self.scale != 1.0:
            logits_MV = logits_MV * self.scale
        if self.softcap is not None:
            logits_MV = torch.tanh(logits_MV.float() / self.softcap) * self.softcap
        return logits_MV

    def project(self, hidden_MD: Tensor) -> Tensor:
        """The output layer alone. Mamba-2 keeps its residuals in float32, which the layer may not be in."""
        dtype = self.layer.weight.dtype
        if dtype.is_floating_point and not torch.is_autocast_enabled(hidden_MD.device.type):
            hidden_MD = hidden_MD.to(dtype)  # type: ignore[arg-type]
        logits_MV: Tensor = self.layer(hidden_MD)
        return logits_MV


class Predictions(NamedTuple):
    """Of M targets: their log-probabilities in float32 and, without gradient, the entropies of their
    distributions and whether each target was the likeliest token."""

    logprobs_M: Tensor
    entropies_M: Tensor
    greedy_M: Tensor


def predict(hidden_MD: Tensor, targets_M: Tensor, head: Head, temperature_M: Tensor | None = None) -> Predictions:
    """How probable each target is after its hidden state, at its own temperature where `temperature_M` is given."""
    size = max(_logits_per_chunk(hidden_MD.device, head) // head.vocabulary // 128, 1) * 128  # whole tiles
    cuts = list(range(size, len(hidden_MD), size))
    temperatures = [None] * (len(cuts) + 1) if temperature_M is None else torch.tensor_split(temperature_M, cuts)
    hidden, targets = torch.tensor_split(hidden_MD, cuts), torch.tensor_split(targets_M, cuts)
    chunks = list(zip(hidden, targets, [head] * len(hidden), temperatures, strict=True))
    if head.trained:
        done = [checkpoint(_predict_chunk, *chunk, use_reentrant=False) for chunk in chunks[:-1]]
        done.append(_predict_chunk(*chunks[-1]))
    elif hidden_MD.requires_grad and torch.is_grad_enabled():
        done = [_FrozenHead.apply(*chunk) for chunk in chunks]  # type: ignore[no-untyped-call]
    else:
        done = [_predict_chunk(*chunk) for chunk in chunks]
    return Predictions(*(torch.cat(parts) for parts in zip(*done, strict=True)))


def _logits_per_chunk(device: torch.device, head: Head) -> int:
    if device.type != "cuda" or not head.trained:
        return CHUNK_LOGITS
    return max(CHUNK_LOGITS, torch.cuda.get_device_properties(device).total_memory // MEMORY_PER_LOGIT)


def _predict_chunk(
    hidden_CD: Tensor, targets_C: Tensor, head: Head, temperature_C: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    logits_CV = head.logits(hidden_CD)
    # In float32, as the sampler divides: bfloat16 would round the quotients.
    if temperature_C is not None:
        logits_CV = logits_CV.float() / temperature_C[:, None]
    elif head.temperature != 1.0:
        logits_CV = logits_CV.float() / head.temperature
    result: tuple[Tensor, Tensor, Tensor] = _LogSoftmaxAt.apply(logits_CV, targets_C)  # type: ignore[no-untyped-call]
    return result


class _FrozenHead(torch.autograd.Function):
    """A chunk's predictions together with their derivatives by its hidden states."""

    @staticmethod
    def forward(
        ctx: Any, hidden_CD: Tensor, targets_C: Tensor, head: Head, temperature_C: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            hidden_CD = hidden_CD.detach().requires_grad_()
            logprobs_C, entropies_C, greedy_C = _predict_chunk(hidden_CD, targets_C, head, temperature_C)
            (slopes_CD,) = torch.autograd.grad(logprobs_C.sum(), hidden_CD)
        ctx.save_for_backward(slopes_CD)
        ctx.mark_non_differentiable(entropies_C, greedy_C)
        return logprobs_C.detach(), entropies_C, greedy_C

    @staticmethod
    def backward(ctx: Any, grad_C: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes_CD,) = ctx.saved_tensors
        return (slopes_CD * grad_C[:, None]).to(slopes_CD.dtype), None, None, None


class _LogSoftmaxAt(torch.autograd.Function):
    """log softmax at one target a row, and the entropy of the row.

    Autograd would make a handful of temporaries of the size of the logits for it, which on
    a GPU takes longer than the matrix product before; compiled, each way is a kernel or two.
    """

    @staticmethod
    def forward(ctx: Any, logits_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logprobs_C, entropies_C, greedy_C, norms_C = _fused(_values, logits_CV.is_cuda)(logits_CV, targets_C)
        ctx.save_for_backward(logits_CV, norms_C, logprobs_C, targets_C)
        ctx.mark_non_differentiable(entropies_C, greedy_C)
        return logprobs_C, entropies_C, greedy_C

    @staticmethod
    def backward(ctx: Any, grad_C: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        logits_CV, norms_C, logprobs_C, targets_C = ctx.saved_tensors
        grad_CV = _fused(_scaled_probs, logits_CV.is_cuda)(logits_CV, norms_C, -grad_C)
        # 1 - p in float32: near a sure token, bfloat16 would round it away.
        at_targets_C = (-logprobs_C.expm1() * grad_C).to(grad_CV.dtype)
        return grad_CV.scatter_(1, targets_C[:, None], at_targets_C[:, None]), None


def _values(logits_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits_CV = logits_CV.float()
    norms_C = logits_CV.logsumexp(-1)
    means_C = ((logits_CV - norms_C[:, None]).exp() * logits_CV).sum(-1)
    at_targets_C = logits_CV.gather(1, targets_C[:, None])[:, 0]
    return at_targets_C - norms_C, norms_C - means_C, at_targets_C >= logits_CV.amax(-1), norms_C


def _scaled_probs(logits_CV: Tensor, norms_C: Tensor, scales_C: Tensor) -> Tensor:
    return ((logits_CV.float() - norms_C[:, None]).exp() * scales_C[:, None]).to(logits_CV.dtype)


@cache
def _fused(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True) if compiled else function
