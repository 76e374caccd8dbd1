"""Functions of single numbers whose rounding depends on how torch's threads share the work, left to one thread.

A thread rounds what is left over after its last whole vector with other instructions, and
a cosine depends on the other numbers in its vector. Where a thread's part ends depends on the
number of rows, so a token's state would too. Matrix products, which take the time, keep all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {
        functional.silu, functional.gelu, functional.mish, functional.softplus, functional.elu,
        functional.sigmoid, torch.sigmoid, Tensor.sigmoid, functional.tanh, torch.tanh, Tensor.tanh,
        torch.cos, Tensor.cos, torch.sin, Tensor.sin,
    }
)  # fmt: skip


class OneThread(TorchFunctionMode):
    """Within it, activations, cosines and sines have the same bits whatever is computed beside them."""

    def __torch_function__(
        self, function: Callable[..., Any], _: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function not in FUNCTIONS:
            return function(*args, **kwargs or {})
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs or {})
        finally:
            torch.set_num_threads(threads)
