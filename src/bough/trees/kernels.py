"""Kernels of flash-linear-attention, used on CUDA where the package is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor


def fla_kernel(name: str, example: Tensor) -> Callable[..., Any] | None:
    """The kernel `fla.ops.<name>` for tensors like `example`; None where the plain torch form has to do."""
    return _imported(name) if example.is_cuda else None


@cache
def _imported(name: str) -> Callable[..., Any] | None:
    package, _, function = name.rpartition(".")
    try:
        kernel: Callable[..., Any] = getattr(import_module(f"fla.ops.{package}"), function)
    except ImportError:
        return None
    return kernel
