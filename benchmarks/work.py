"""The arithmetic that training on trees takes at least.

Counted are the matrix products of the decoder's linear layers, attention over the pairs of
tokens that see each other, and the LM head at the predicted tokens. Forward costs 2 FLOPs a
weight and token; backward 2 for the activations, and 2 for the weights where they are
trained. What gradient checkpointing or a fused kernel computes again is not work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from bough.trees.build import TreeRow


@dataclass(frozen=True)
class Sizes:
    """Weights in the decoder's linear layers, in the adapters beside them and in the head; attention's width."""

    linear: int
    adapter: int
    head: int
    attention: int
    trained: bool

    @classmethod
    def of(cls, model: Any) -> Sizes:
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        weights = {name: module.weight for name, module in base.named_modules() if isinstance(module, nn.Linear)}
        head = base.get_output_embeddings().weight
        adapter = sum(weight.numel() for name, weight in weights.items() if ".lora_" in name)
        linear = sum(weight.numel() for name, weight in weights.items() if ".lora_" not in name and weight is not head)
        config = base.config
        width = config.num_hidden_layers * config.num_attention_heads * _head_size(config)
        trained = any(parameter.requires_grad for name, parameter in base.named_parameters() if ".lora_" not in name)
        return cls(linear, adapter, head.numel(), width, trained)

    def forward(self, row: TreeRow, *, adapter: bool = True) -> int:
        """FLOPs of reading a row; without its adapter, as the reference does."""
        weights = self.linear + (self.adapter if adapter else 0)
        return 2 * weights * tokens_of(row) + 4 * self.attention * seen_by(row) + 2 * self.head * len(row.targets_M)

    def backward(self, row: TreeRow) -> int:
        trained = 2 if self.trained else 1
        linear = 2 * (trained * self.linear + 2 * self.adapter) * tokens_of(row)
        return linear + 8 * self.attention * seen_by(row) + 2 * trained * self.head * len(row.targets_M)

    def training(self, rows: Sequence[TreeRow], *, reference: bool) -> int:
        """FLOPs of a gradient, with the reference's log-probabilities where they are computed in the step."""
        total = sum(self.forward(row) + self.backward(row) for row in rows)
        return total + (sum(self.forward(row, adapter=False) for row in rows) if reference else 0)


def tokens_of(row: TreeRow) -> int:
    return len(row.tree)


def seen_by(row: TreeRow) -> int:
    """Pairs of tokens of which the first sees the second: a token sees as many as its depth, and itself."""
    return int((row.tree.position + 1).sum())


def _head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
