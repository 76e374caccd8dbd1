"""The gated delta rule over a tree (Qwen3-Next, Qwen3.5, OLMo Hybrid; Kimi's form has a gate per channel)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from bough.trees.kernels import DELTA_RULE, KIMI_DELTA_RULE, fla_kernel
from bough.trees.recurrent import Branching

CHUNK = 64  # transformers' own default


def tree_delta_rule(
    branching: Branching,
    rule: Callable[..., tuple[Tensor, Tensor]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """The model's own `rule` (transformers' `torch_chunk_gated_delta_rule`) with a state per segment.

    Inputs and output are [1, L, heads, ...]. Where a segment ends before the others of its
    batch, a gate of 0 in log space and a beta of 0 keep its state.
    """
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel}
    inputs = [each[0] for each in (query, key, value, g, beta)]
    kernel = fla_kernel(KIMI_DELTA_RULE if g.dim() == key.dim() else DELTA_RULE, query)
    if kernel is not None:
        return branching.linear_scan(inputs, _packed(kernel, options))[None], None

    def step(inputs: Sequence[Tensor], state_S: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta = inputs
        # A short segment would be padded to a whole chunk.
        chunk_size = min(CHUNK, 1 << (q.shape[1] - 1).bit_length())
        return rule(q, k, v, g=g, beta=beta, initial_state=state_S, chunk_size=chunk_size, **options)

    return branching.scan(inputs, step)[None], None


def row_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule over plain rows on CUDA, as transformers calls it: a kernel that can be trained."""
    kernel = fla_kernel(DELTA_RULE, query)
    assert kernel is not None
    output, state = kernel(
        query, key, value, g=g, beta=beta, cu_seqlens=cu_seqlens,
        initial_state=None if initial_state is None else initial_state.float(),
        output_final_state=output_final_state, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )  # fmt: skip
    return output, state


def _packed(kernel: Callable[..., Any], options: dict[str, bool]) -> Callable[..., tuple[Tensor, Tensor]]:
    def step(
        inputs: Sequence[Tensor], state_S: Tensor | None, bounds: Tensor, bounds_on_cpu: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta = inputs
        output, state = kernel(
            q, k, v, g=g, beta=beta, initial_state=state_S, cu_seqlens=bounds, cu_seqlens_cpu=bounds_on_cpu, **options
        )
        return output, state

    return step
