"""How far a policy's next-token distributions are from a teacher's, token by token.

The generalised Jensen-Shannon divergence of GKD (Agarwal et al. 2023), summed over the whole
vocabulary. Like the log-probabilities (`policy/head.py`) it is computed in chunks: the logits
of student and teacher are never held for more than one of them, and with a frozen head all
that is kept for the backward pass is one vector for each token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bough.policy.head import CHUNK_LOGITS, Head

if TYPE_CHECKING:
    from bough.policy.policy import Policy
    from bough.trees.pack import PlainRow, TreeRow

# A divergence takes several temporaries of the size of the logits, twice.
CHUNK = CHUNK_LOGITS // 8


@dataclass
class Teacher:
    """A frozen policy to learn from. `beta` is that of the divergence: 0 forward KL, 1 reverse KL."""

    policy: Policy
    beta: float

    @torch.no_grad()
    def hidden(self, row: TreeRow | PlainRow) -> Tensor:
        """The hidden states that predict the row's targets: one pass over the same tree."""
        return self.policy.predictors(row)


class Divergences(NamedTuple):
    """Of M targets: their log-probabilities, entropies and whether they were the likeliest, all without
    gradient, and how far the distributions that they came from are from the teacher's, in nats."""

    logprobs_M: Tensor
    entropies_M: Tensor
    greedy_M: Tensor
    divergences_M: Tensor


def diverge(
    hidden_MD: Tensor, targets_M: Tensor, head: Head, teacher_ME: Tensor, teacher_head: Head, beta: float
) -> Divergences:
    """The divergence of the distribution after each hidden state from the teacher's after its own."""
    size = max(CHUNK // head.vocabulary // 128, 1) * 128
    cuts = list(range(size, len(hidden_MD), size))
    hidden, targets, teacher = (torch.tensor_split(values, cuts) for values in (hidden_MD, targets_M, teacher_ME))
    chunks = list(zip(hidden, targets, teacher, strict=True))
    more = head, teacher_head, beta
    if head.trained:
        done = [checkpoint(_chunk, *chunk, *more, use_reentrant=False) for chunk in chunks[:-1]]
        done.append(_chunk(*chunks[-1], *more))
    elif hidden_MD.requires_grad and torch.is_grad_enabled():
        done = [_FrozenHead.apply(*chunk, *more) for chunk in chunks]  # type: ignore[no-untyped-call]
    else:
        done = [_chunk(*chunk, *more) for chunk in chunks]
    return Divergences(*(torch.cat(parts) for parts in zip(*done, strict=True)))


def jensen_shannon(student_CV: Tensor, teacher_CV: Tensor, beta: float) -> Tensor:
    """The divergence of each row of log-probabilities, [C]. With m the mixture (1 - β)·student + β·teacher:

        β · KL(teacher | m) + (1 - β) · KL(student | m)

    At β = 0 it is KL(teacher | student), the forward KL, and at β = 1 KL(student | teacher), the
    reverse KL: the limits of the expression divided by β and by 1 - β, as in TRL's GKD.
    """
    if beta == 0:
        return _kl(teacher_CV, student_CV)
    if beta == 1:
        return _kl(student_CV, teacher_CV)
    mixture_CV = torch.logaddexp(student_CV + math.log1p(-beta), teacher_CV + math.log(beta))
    return beta * _kl(teacher_CV, mixture_CV) + (1 - beta) * _kl(student_CV, mixture_CV)


def _kl(left_CV: Tensor, right_CV: Tensor) -> Tensor:
    return (left_CV.exp() * (left_CV - right_CV)).sum(-1)


def _chunk(
    hidden_CD: Tensor, targets_C: Tensor, teacher_CE: Tensor, head: Head, teacher_head: Head, beta: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Models of one tokenizer may pad their vocabularies to different sizes; no text has the ids beyond the smaller.
    size = min(head.vocabulary, teacher_head.vocabulary)
    student_CV = _log_softmax(head, hidden_CD, size)
    with torch.no_grad():
        teacher_CV = _log_softmax(teacher_head, teacher_CE, size)
    divergences_C = jensen_shannon(student_CV, teacher_CV, beta)
    with torch.no_grad():
        logprobs_C = student_CV.gather(1, targets_C[:, None])[:, 0]
        entropies_C = -(student_CV.exp() * student_CV).sum(-1)
        greedy_C = logprobs_C >= student_CV.amax(-1)
    return logprobs_C, entropies_C, greedy_C, divergences_C


def _log_softmax(head: Head, hidden_CD: Tensor, size: int) -> Tensor:
    return torch.log_softmax(head.logits(hidden_CD)[:, :size].float() / head.temperature, -1)


class _FrozenHead(torch.autograd.Function):
    """A chunk's divergences together with their derivatives by its hidden states."""

    @staticmethod
    def forward(ctx: Any, hidden_CD: Tensor, targets_C: Tensor, teacher_CE: Tensor, *more: Any) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            hidden_CD = hidden_CD.detach().requires_grad_()
            *facts, divergences_C = _chunk(hidden_CD, targets_C, teacher_CE, *more)
            (slopes_CD,) = torch.autograd.grad(divergences_C.sum(), hidden_CD)
        ctx.save_for_backward(slopes_CD)
        ctx.mark_non_differentiable(*facts)
        return *facts, divergences_C.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slopes_CD,) = ctx.saved_tensors
        return (slopes_CD * grads[-1][:, None]).to(slopes_CD.dtype), None, None, None, None, None
