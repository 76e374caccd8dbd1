"""A second policy with weights of its own, to sample with while the first one trains.

Weights that are not trained are in memory once: of an adapter's policy the twin copies the
adapter only, of a policy that trains all its weights everything. The twin's weights change
only in `renew`, so its log-probabilities are those of one version of the policy.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from bough.policy.attention import Attention
from bough.policy.policy import Policy


class Twin:
    """`policy` computes what `source` did at the last `renew`."""

    def __init__(self, source: Policy) -> None:
        shared = {id(weight): _shared(weight) for weight in source.model.parameters() if not weight.requires_grad}
        self._source = [weight for weight in source.model.parameters() if weight.requires_grad]
        attention: Attention = "flex" if source.row_reader.flex else "sdpa"
        # What is in `shared` is used as it is; all other weights are copied.
        self.policy = Policy(
            deepcopy(source.model, shared), attention=attention, autocast=source.autocast, probe=False
        ).eval()
        self.policy.row_reader.obstacle = source.obstacle
        self.policy.together, self.policy.temperature = source.together, source.temperature
        self._own = [weight for weight in self.policy.model.parameters() if weight.requires_grad]
        self.policy.requires_grad_(False)

    @property
    def num_bytes(self) -> int:
        """The memory of the copied weights."""
        return sum(weight.numel() * weight.element_size() for weight in self._own)

    @torch.no_grad()
    def renew(self) -> None:
        """Copies the newest weights, in place. The twin must not be computing, nor the source be in an update."""
        torch._foreach_copy_(self._own, self._source)


def _shared(weight: Tensor) -> Tensor:
    """The same memory as another parameter, so that `weight.data = …` on either leaves the other as it is."""
    # Quantized weights are of a class of their own; these are never replaced.
    return nn.Parameter(weight.data, requires_grad=False) if type(weight) is nn.Parameter else weight
