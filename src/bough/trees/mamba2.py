"""The Mamba-2 scan over a tree (Granite 4, Nemotron-H, Falcon-H1, Bamba, Zamba2, Mamba-2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import softplus

from bough.trees.kernels import LINEAR_ATTENTION, fla_kernel
from bough.trees.recurrent import Branching

SMALLEST_ON_CUDA = 16  # the shortest chunk that the kernels of mamba-ssm can multiply


def tree_scan(
    branching: Branching,
    scan: Callable[..., Any],
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> Tensor:
    """The model's own `scan` (transformers' `mamba2_chunk_scan`) with a state per segment.

    Inputs are [1, L, heads or groups, ...]. A time step of 0 leaves a state alone, so the time
    steps are made here, before segments are padded: made of padding they would not be 0.
    """
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = softplus(dt)
    dt = dt.clamp(*dt_limit)
    kernel = fla_kernel(LINEAR_ATTENTION, hidden_states)
    if kernel is not None:
        return _with_kernel(branching, kernel, hidden_states, dt, A, B, C, D)

    def step(inputs: Sequence[Tensor], state_S: Tensor | None) -> tuple[Tensor, Tensor]:
        x, dt, b, c = inputs
        # A short segment would be padded to a whole chunk.
        smallest = SMALLEST_ON_CUDA if x.is_cuda else 1
        chunk = min(chunk_size, max(smallest, 1 << (x.shape[1] - 1).bit_length()))
        output, state = scan(
            x, dt, A, b, c, chunk_size=chunk, D=D, initial_states=state_S, return_final_states=True
        )  # fmt: skip
        return output, state

    return branching.scan([each[0] for each in (hidden_states, dt, B, C)], step)[None]


def _with_kernel(
    branching: Branching,
    kernel: Callable[..., Any],
    x_1LHP: Tensor,
    dt_1LH: Tensor,
    A_H: Tensor,
    B_1LGN: Tensor,
    C_1LGN: Tensor,
    D_H: Tensor | None,
) -> Tensor:
    """Mamba-2 is linear attention with a decay per head: keys B, queries C, values x * dt."""
    repeats = x_1LHP.shape[2] // B_1LGN.shape[2]
    q, k = (each.repeat_interleave(repeats, dim=2) for each in (C_1LGN, B_1LGN))
    v = (x_1LHP * dt_1LH[..., None]).to(x_1LHP.dtype)
    decay_1LH = A_H.float() * dt_1LH.float()

    def step(
        inputs: Sequence[Tensor], state_S: Tensor | None, bounds: Tensor, bounds_on_cpu: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, v, g = inputs
        output, state = kernel(
            q, k, v, g=g, scale=1.0, initial_state=state_S, output_final_state=True,
            cu_seqlens=bounds, cu_seqlens_cpu=bounds_on_cpu,
        )  # fmt: skip
        return output, state

    output_1LHP = branching.linear_scan([each[0] for each in (q, k, v, decay_1LH)], step)[None]
    return output_1LHP if D_H is None else output_1LHP + D_H[:, None] * x_1LHP
