"""How the rows of training are read: the attention function, masks, padding and CUDA graphs of each kind of row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bough.policy.attention import FLEX, Attention, attentions
from bough.policy.reach import decoder_of
from bough.policy.recorded import RecordedReads, padded
from bough.trees.attend import block_mask, dense_mask
from bough.trees.build import TokenTree
from bough.trees.layers import STATEFUL, Sight, branching_obstacle, layer_sights
from bough.trees.mixers import known_mixers, let_mixers_branch
from bough.trees.pack import PlainRow, TreeRow
from bough.trees.recurrent import Branching, to_device


class RowReader:
    """Reads rows with the decoder of `base`, a transformers model. Called with a row, it gives hidden states.

    `obstacle` says why the model cannot read trees, None if it can. Rows are read under `autocast`,
    which the caller switches on. `device` is where the model will compute, if its weights are elsewhere still.
    """

    recorded: RecordedReads | None = None  # plays trees back as CUDA graphs, after `record`
    who: Literal["policy", "reference"] = "policy"  # whose adapter is switched on: recordings differ

    def __init__(
        self, base: Any, attention: Attention, *, autocast: torch.dtype | None, device: torch.device | None
    ) -> None:
        self.base, self.autocast = base, autocast
        self.plain_attention, self.tree_attention = attentions(base, attention, device or self.device)
        self.obstacle = branching_obstacle(self.decoder)
        self._sights = {} if self.obstacle else layer_sights(self.decoder)
        self.carries_state = bool(known_mixers(self.decoder))
        let_mixers_branch(self.decoder)
        self.attend_with(self.plain_attention)

    @property
    def decoder(self) -> Any:
        """The model without its head; of a vision-language model, the language model."""
        return decoder_of(self.base)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.base.get_input_embeddings().weight.device
        return device

    @property
    def sights(self) -> dict[str, Sight]:
        """What each kind of attention layer sees; empty if the model cannot read trees."""
        return {} if self.obstacle else self._sights

    @property
    def flex(self) -> bool:
        """Whether trees are computed with FlexAttention."""
        return self.tree_attention == FLEX

    def __call__(self, row: TreeRow | PlainRow) -> Tensor:
        """Hidden states [I, D] of a row's tokens, in the order that the row numbers them in."""
        return self._read_tree(row) if isinstance(row, TreeRow) else self._read_plain(row)

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """An array of a row, on the device of the model."""
        return to_device(torch.from_numpy(array), self.device)

    def attend_with(self, attention: str) -> None:
        """From now on the decoder uses this attention function, by its name in transformers.

        A model around the decoder (one that also sees) may have another and not let it be changed.
        """
        if self.decoder.config._attn_implementation != attention:
            self.decoder.set_attn_implementation(attention)

    def record(self) -> None:
        """From now on trees are read by CUDA graphs."""

        def read(token_L: Tensor, position_L: Tensor, end_L: Tensor) -> Tensor:
            # Weights are cast inside the graph: a cast from before it would keep the weights of that step.
            enabled = self.autocast is not None
            with torch.autocast(self.device.type, self.autocast, enabled=enabled, cache_enabled=False):
                return self._read_nodes(token_L, position_L, end_L)

        self.recorded = RecordedReads(read, self.decoder.parameters())

    @property
    def has_recordings(self) -> bool:
        """Whether recordings take memory."""
        return self.recorded is not None and bool(self.recorded.recordings)

    def give_way(self) -> bool:
        """Frees the memory of recordings, and records less from now on; False if nothing is recorded."""
        return self.recorded is not None and self.recorded.give_way()

    def free_memory(self) -> None:
        """Gives the GPU's unused memory back, that of recordings too."""
        if self.recorded:
            self.recorded.drop()
        torch.cuda.empty_cache()

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Within it no row is read by a CUDA graph: for rows whose backward passes all come at the end."""
        recorded, self.recorded = self.recorded, None
        try:
            yield
        finally:
            self.recorded = recorded

    def _read_tree(self, row: TreeRow) -> Tensor:
        """Hidden states [L, D] of a tree's nodes, and of padding after them."""
        tree = row.tree
        length = padded(len(tree), few=self.recorded is not None) if self.flex else len(tree)
        token_L, position_L = np.zeros(length, np.int64), np.zeros(length, np.int64)
        end_L = np.arange(1, length + 1)  # padding sees itself: a softmax over nothing is NaN
        token_L[: len(tree)], position_L[: len(tree)], end_L[: len(tree)] = tree.token, tree.position, tree.end
        nodes = self.tensor(token_L), self.tensor(position_L), self.tensor(end_L)
        if self.recorded:
            return self.recorded(*nodes, self.who)
        return self._read_nodes(*nodes, self._branching(tree, length) if self.carries_state else None)

    def _read_nodes(
        self, token_L: Tensor, position_L: Tensor, end_L: Tensor, branching: Branching | None = None
    ) -> Tensor:
        dtype = self.autocast or self.base.dtype
        masks: dict[str, Any] = {
            kind: block_mask(end_L, position_L, sight) if self.flex else dense_mask(end_L, position_L, sight, dtype)
            for kind, sight in self.sights.items()
        }
        if branching is not None:
            if not self.sights:  # a model without attention makes no masks, and hands options on to its mixers
                return self._read(token_L[None], None, self.tree_attention, branching=branching)[0]
            masks |= dict.fromkeys(STATEFUL, branching)
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        return self._read(token_L[None], mask, self.tree_attention, position_ids=position_L[None])[0]

    def _branching(self, tree: TokenTree, length: int) -> Branching:
        """The forks of a row of `length` nodes: the tree's, and one tree of padding after it."""
        parent_L = np.arange(-1, length - 1)
        parent_L[: len(tree)] = tree.parent
        parent_L[len(tree) : len(tree) + 1] = -1
        return Branching(parent_L, self.device)

    def _read_plain(self, row: PlainRow) -> Tensor:
        """Hidden states [B * L, D] of calls side by side. Padding comes last, where no token looks: no mask."""
        return self._read(self.tensor(row.tokens_BL), None, self.plain_attention).flatten(0, 1)

    def _read(self, tokens_BL: Tensor, mask: Any, attention: str, **more: Any) -> Tensor:
        self.attend_with(attention)
        # No cache is read here, and with one transformers treats repeated positions differently.
        hidden_BLD: Tensor = self.decoder(
            input_ids=tokens_BL, attention_mask=mask, use_cache=False, **more
        ).last_hidden_state
        return hidden_BLD
