"""Where the tokens of a mixture-of-experts model go: the load-balancing loss of its routers, and how even the load is.

The loss is that of transformers (and of Switch Transformers): experts x sum over experts of
(share of tokens that chose it) x (mean probability it was given), over all layers together.
Every computed token counts once. In a tree that is once for a prompt that thirty calls share:
what is balanced is the text as it is computed, not its repetitions. Padding does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bough.errors import InputError
from bough.trees.pack import PlainRow, TreeRow

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
    real = torch.from_numpy(_real(row, len(logits[0]))).to(logits[0].device)
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


def _real(row: TreeRow | PlainRow, length: int) -> np.ndarray[Any, Any]:
    """The numbers of the inputs of a row that are not padding."""
    if isinstance(row, TreeRow):
        return np.arange(len(row.tree))
    # The last input of a call predicts the last token of its answer; padding comes after it.
    width = length // len(row.tokens_BL)
    last_B = np.zeros(len(row.tokens_BL), np.int64)
    np.maximum.at(last_B, row.predictors_M // width, row.predictors_M % width)
    return np.concatenate([b * width + np.arange(last + 1) for b, last in enumerate(last_B)])
