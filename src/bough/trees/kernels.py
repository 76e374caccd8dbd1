"""Kernels of flash-linear-attention (fla), used on CUDA where the package is installed.

On Hopper GPUs, Triton 3.4 to 3.7.0 miscompiles the gradient of kernels with one gate per head,
and fla refuses to compute it. Its kernels with a gate per channel are not affected and give the
same result when all channels of a head have the same gate, so they take over there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

DELTA_RULE = "gated_delta_rule.chunk_gated_delta_rule"
KIMI_DELTA_RULE = "kda.chunk_kda"
LINEAR_ATTENTION = "simple_gla.chunk_simple_gla"
# Kernels with a gate per head, and those with a gate per channel that compute the same.
PER_CHANNEL = {DELTA_RULE: KIMI_DELTA_RULE, LINEAR_ATTENTION: "gla.chunk_gla"}


def fla_kernel(name: str, example: Tensor) -> Callable[..., Any] | None:
    """The kernel `fla.ops.<name>` for tensors like `example`; None where the plain torch form must be used.

    It takes q, k and v [1, T, heads, size] by position and the rest by name. States are float32
    and gradients flow through them.
    """
    if not example.is_cuda:
        return None
    if name in PER_CHANNEL and head_gates_refused():
        kernel = _imported(PER_CHANNEL[name])
        return None if kernel is None else with_gates_per_channel(kernel)
    return _imported(name)


@cache
def head_gates_refused() -> bool:
    """Whether fla refuses the backward pass of kernels with a gate per head on this machine."""
    try:
        found = import_module("fla.utils")
        miscompiled = found.TRITON_ABOVE_3_4_0 and not found.TRITON_ABOVE_3_7_1
        return bool(found.IS_NVIDIA_HOPPER and miscompiled)
    except (ImportError, AttributeError):  # not installed, or another version that no longer needs the check
        return False


def with_gates_per_channel(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel with a gate per channel as one that takes a gate per head, `g` [1, T, heads]."""

    def run(q: Tensor, k: Tensor, v: Tensor, *, g: Tensor, **options: Any) -> Any:
        return kernel(q, k, v, g=g[..., None].expand(*g.shape, k.shape[-1]), **options)

    return run


@cache
def _imported(name: str) -> Callable[..., Any] | None:
    package, _, function = name.rpartition(".")
    try:
        kernel: Callable[..., Any] = getattr(import_module(f"fla.ops.{package}"), function)
    except ImportError:
        return None
    return kernel
