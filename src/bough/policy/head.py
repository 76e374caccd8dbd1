"""From hidden states to log-probabilities without ever holding [tokens x vocabulary] logits.

The head runs over the predictions in chunks and never keeps more logits than one chunk's,
however many tokens were answered. A frozen head is not run twice for it: a prediction is
one number that depends on one hidden state, so its whole derivative is one vector, taken
while the chunk's logits are at hand. A trained head needs its logits in the backward pass
too: the last chunk's are still there, those before are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bough.errors import InputError
from bough.trees.build import PlainRow, TreeRow

if TYPE_CHECKING:
    from bough.policy.policy import Policy


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


def predict(hidden_MD: Tensor, targets_M: Tensor, head: Head) -> Predictions:
    """How probable each target is after its hidden state."""
    chunk_logits = CHUNK_LOGITS
    if hidden_MD.is_cuda and head.trained:
        memory = torch.cuda.get_device_properties(hidden_MD.device).total_memory
        chunk_logits = max(CHUNK_LOGITS, memory // MEMORY_PER_LOGIT)
    return Predictions(*_in_chunks(_predict_chunk, chunk_logits, (head,), hidden_MD, targets_M))


def _in_chunks(
    compute: Callable[..., tuple[Tensor, ...]],
    chunk_logits: int,
    heads: tuple[Any, ...],
    hidden_MD: Tensor,
    *others: Tensor,
) -> Iterator[Tensor]:
    """`compute(heads, hidden, *others)` over pieces of the tensors; of its results the first has the gradient.

    `heads` begins with the head that the hidden states go through.
    """
    head: Head = heads[0]
    size = max(chunk_logits // head.vocabulary // 128, 1) * 128  # whole tiles
    cuts = list(range(size, len(hidden_MD), size))
    chunks = list(zip(*(torch.tensor_split(each, cuts) for each in (hidden_MD, *others)), strict=True))
    if head.trained:
        done = [checkpoint(compute, heads, *chunk, use_reentrant=False) for chunk in chunks[:-1]]
        done.append(compute(heads, *chunks[-1]))
    elif hidden_MD.requires_grad and torch.is_grad_enabled():
        done = [_FrozenHead.apply(compute, heads, *chunk) for chunk in chunks]  # type: ignore[no-untyped-call]
    else:
        done = [compute(heads, *chunk) for chunk in chunks]
    return map(torch.cat, zip(*done, strict=True))


def _predict_chunk(heads: tuple[Head], hidden_CD: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (head,) = heads
    logits_CV = head.logits(hidden_CD)
    if head.temperature != 1.0:  # in float32, as the sampler divides: bfloat16 would round the quotients
        logits_CV = logits_CV.float() / head.temperature
    result: tuple[Tensor, Tensor, Tensor] = _LogSoftmaxAt.apply(logits_CV, targets_C)  # type: ignore[no-untyped-call]
    return result


class _FrozenHead(torch.autograd.Function):
    """A chunk's values together with their derivatives by its hidden states."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., tuple[Tensor, ...]], heads: tuple[Any, ...], hidden_CD: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            hidden_CD = hidden_CD.detach().requires_grad_()
            values_C, *facts = compute(heads, hidden_CD, *others)
            (slopes_CD,) = torch.autograd.grad(values_C.sum(), hidden_CD)
        ctx.save_for_backward(slopes_CD)
        ctx.mark_non_differentiable(*facts)
        ctx.num_others = len(others)
        return values_C.detach(), *facts

    @staticmethod
    def backward(ctx: Any, grad_C: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (slopes_CD,) = ctx.saved_tensors
        return None, None, (slopes_CD * grad_C[:, None]).to(slopes_CD.dtype), *[None] * ctx.num_others


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


# The check of a model's own weights before it becomes a policy: one short forward pass.
# It finds heads that compute something `Head` does not know, and models that are not causal. The probe finds the same
# on a small copy; here it is the model itself, with its adapters, its quantized layers and whatever was done to its
# methods.

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
    head, seen = Head.of(model), list[Tensor]()

    def enlarge(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        """Scale hidden states up on their way to the head: a cap that small logits hardly feel shows in large ones."""
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
    name = f"{type(model).__name__} ({model.config.model_type})"
    # Low precision rounds every operation between the hidden states and the logits.
    tolerance = 1e-4 if torch.finfo(model.dtype).eps < 1e-5 else 0.02
    error = _distance(head.logits(seen[0]).float(), logits_BLV) if seen else 1.0
    if not error <= tolerance:
        raise InputError(
            f"{name} computes its logits in a way that Bough does not know (they differ by {error:.1%}): the "
            "log-probabilities would be wrong, so it can be neither trained nor sampled with the local engine; use "
            "--engine vllm or openai to sample from it"
        )
    if not _distance(*seen[0][:, :-1].float()) <= tolerance:
        raise InputError(f"{name} {NOT_CAUSAL}")


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((one - other).abs().max() / other.abs().max())


# How far a policy's next-token distributions are from a teacher's, token by token.
# The generalised Jensen-Shannon divergence of GKD (Agarwal et al. 2023), summed over the whole vocabulary. Like the
# log-probabilities (`policy/head.py`) it is computed in chunks: the logits of student and teacher are never held for
# more than one of them, and with a frozen head all that is kept for the backward pass is one vector for each token.

# A divergence takes several temporaries of the size of the logits, twice.
CHUNK = CHUNK_LOGITS // 8


@dataclass
class Teacher:
    """A frozen policy to learn from. `beta` is that of the divergence: 0 forward KL, 1 reverse KL."""

    policy: Policy
    beta: float


def diverge(
    hidden_MD: Tensor, targets_M: Tensor, head: Head, teacher_ME: Tensor, teacher_head: Head, beta: float
) -> tuple[Tensor, ...]:
    """The targets' `Predictions` without gradient, and how far each distribution is from the teacher's, in nats."""
    heads = head, teacher_head, beta
    divergences_M, *facts = _in_chunks(_diverge_chunk, CHUNK, heads, hidden_MD, targets_M, teacher_ME)
    return *facts, divergences_M


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


def _diverge_chunk(
    heads: tuple[Head, Head, float], hidden_CD: Tensor, targets_C: Tensor, teacher_CE: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    head, teacher_head, beta = heads
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
    return divergences_C, logprobs_C, entropies_C, greedy_C


def _log_softmax(head: Head, hidden_CD: Tensor, size: int) -> Tensor:
    return torch.log_softmax(head.logits(hidden_CD)[:, :size].float() / head.temperature, -1)


# Where the tokens of a mixture-of-experts model go: the load-balancing loss of its routers, and how even the load is.
# The loss is that of transformers (and of Switch Transformers): experts x sum over experts of (share of tokens that
# chose it) x (mean probability it was given), over all layers together. Every computed token counts once. In a tree
# that is once for a prompt that thirty calls share: what is balanced is the text as it is computed, not its
# repetitions. Padding does not count.

TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")


class Routing(NamedTuple):
    """How a row was routed: its load-balancing loss, and the share of the busiest expert, as a mean over layers."""

    loss: Tensor
    busiest: Tensor
    num_tokens: int

    def detach(self) -> Routing:
        return Routing(self.loss.detach(), self.busiest.detach(), self.num_tokens)


class Routers:
    """The routers of a decoder, whose logits can be listened to."""

    def __init__(self, modules: Sequence[tuple[nn.Module, int]], top_k: int) -> None:
        self.modules, self.top_k = modules, top_k

    @classmethod
    def of(cls, decoder: Any) -> Routers | None:
        """None for a model that is not a mixture of experts, or does not return its routers' logits."""
        config = decoder.config
        top_k = next((value for name in TOP_K if (value := getattr(config, name, None))), None)
        recorders = (getattr(decoder, "_can_record_outputs", None) or {}).get("router_logits")
        if top_k is None or recorders is None or not hasattr(config, "output_router_logits"):
            return None
        modules = []
        for recorder in recorders if isinstance(recorders, list) else [recorders]:
            kind: Any = getattr(recorder, "target_class", recorder)
            index, place = getattr(recorder, "index", 0), getattr(recorder, "layer_name", None) or ""
            named = [(name, module) for name, module in decoder.named_modules() if isinstance(module, kind)]
            modules += [(module, index) for name, module in named if place in name and ".lora_" not in name]
        return cls(modules, top_k) if modules else None

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """Within it, the logits [tokens, experts] of every router that computes are added to the list."""
        heard: list[Tensor] = []

        def listen(index: int) -> Any:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                logits = output[index] if isinstance(output, tuple) else output
                heard.append(logits.reshape(-1, logits.shape[-1]))

            return hook

        handles = [module.register_forward_hook(listen(index)) for module, index in self.modules]
        try:
            yield heard
        finally:
            for handle in handles:
                handle.remove()


def routing(logits: Sequence[Tensor], row: TreeRow | PlainRow, top_k: int) -> Routing:
    """How the tokens of a row were routed, given the logits of all routers."""
    if isinstance(row, TreeRow):
        inputs = np.arange(len(row.tree))
    else:
        # The last input of a call predicts the last token of its answer; padding comes after it.
        width = len(logits[0]) // len(row.tokens_BL)
        last_B = np.zeros(len(row.tokens_BL), np.int64)
        np.maximum.at(last_B, row.predictors_M // width, row.predictors_M % width)
        inputs = np.concatenate([b * width + np.arange(last + 1) for b, last in enumerate(last_B)])
    real = torch.from_numpy(inputs).to(logits[0].device)
    chosen_E = probs_E = torch.zeros(logits[0].shape[-1], device=real.device)
    busiest = torch.zeros((), device=real.device)
    for logits_IE in logits:
        probs_IE = logits_IE[real].float().softmax(-1)
        of_layer_E = torch.bincount(probs_IE.topk(top_k).indices.flatten(), minlength=probs_IE.shape[-1]).float()
        chosen_E, probs_E = chosen_E + of_layer_E, probs_E + probs_IE.sum(0)
        busiest = busiest + of_layer_E.max() / of_layer_E.sum()
    rows = len(real) * len(logits)
    loss = len(chosen_E) * (chosen_E / rows * (probs_E / rows)).sum()
    return Routing(loss, busiest / len(logits), len(real))


def coefficient(decoder: Any, wanted: float | None) -> float:
    """The weight of the load-balancing loss: what the settings ask for, else what the model's config does."""
    known = Routers.of(decoder) is not None
    if wanted and not known:
        raise InputError(
            f"router_aux_loss_coef: {type(decoder).__name__} is not a mixture of experts that returns its routers' "
            "logits, so there is no load-balancing loss; leave the setting out"
        )
    if wanted is not None or not known:
        return wanted or 0.0
    return float(getattr(decoder.config, "router_aux_loss_coef", None) or 0.0)
