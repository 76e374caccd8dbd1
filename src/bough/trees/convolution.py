"""A short causal convolution over a tree.

The row's own convolution is right wherever a node's last ancestors are the nodes before it
in the row, which is everywhere except right after a fork or a root. Those few nodes are
computed again from their ancestors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bough.trees.recurrent import Branching


def tree_convolution(
    branching: Branching,
    convolve: Callable[..., Tensor],
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """The model's own `convolve` (transformers' `causal_conv1d_fn`) with the ancestors of each node as its past.

    Input and output are [1, channels, L]; the names of the arguments are those of transformers.
    """
    output_1CL = convolve(hidden_states, weight, bias, activation=activation)
    nodes_F, ancestors_FK = branching.windows(weight.shape[1])
    if not len(nodes_F):
        return output_1CL
    past_FKC = hidden_states[0].T[ancestors_FK.clamp(min=0)] * (ancestors_FK >= 0)[..., None]
    again_FC = convolve(past_FKC.transpose(1, 2).contiguous(), weight, bias, activation=activation)[..., -1]
    return output_1CL.index_copy(2, nodes_F, again_FC.T[None].to(output_1CL.dtype))
