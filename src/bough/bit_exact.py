"""Bit-exact results on a CPU: what must be set before torch loads, and a check that it works on this machine.

Two promises rest on it, both for float32 on a CPU: the local engine draws the same tokens
whatever else is in the batch, and a resumed run ends in the same bits. On x86_64 torch
multiplies matrices with MKL, which by default rounds a row differently when the number of
rows or their place in memory changes. Its strict mode does not.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    Multiply = Callable[[Tensor, Tensor], Tensor]

log = logging.getLogger(__name__)

VARIABLE, STRICT = "MKL_CBWR", "AUTO,STRICT"
# Inputs and outputs of layers: `tiny`, SmolLM2, adapters, and attention over a block of keys.
SHAPES = ((64, 64), (64, 512), (512, 64), (576, 576), (576, 1536), (1536, 576), (576, 16), (16, 576))
# The engine never multiplies a single row, which every BLAS treats as a vector.
FEWEST, ROWS = 2, (3, 4, 5, 8, 13, 16, 24, 33, 64)


def prepare() -> None:
    """Switches MKL to its strict mode, here and in child processes. Every command does this first.

    A program that imports Bough is left alone: call it there before torch loads. A value that is
    already set is kept, and nothing is changed if torch is loaded.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault(VARIABLE, STRICT)


@cache
def warn_if_batches_differ() -> None:
    """Says, once per process, that what is drawn may depend on the rest of the batch."""
    if shapes := batches_differ():
        log.warning(
            "On this machine the tokens drawn for an episode may change with what else is in the batch: "
            "matrix products round a row differently with the number of rows (%s). %s",
            _listed(shapes),
            _remedy(),
        )


@cache
def warn_if_runs_differ() -> None:
    """Says, once per process, that a resumed run may differ from an uninterrupted one."""
    with _one_thread(onednn=True):
        shapes = changed_by_address(_product)
    if shapes:
        log.warning(
            "On this machine a resumed run may differ in the last bits from one that was never stopped: "
            "matrix products round differently with their place in memory (%s). %s",
            _listed(shapes),
            _remedy(),
        )


@cache
def batches_differ() -> list[tuple[int, int]]:
    """The shapes for which the engine's results depend on the rest of the batch; it takes 0.1 s, once per process."""
    with _one_thread(onednn=False):  # the engine computes without oneDNN
        return changed_by_rows(_product)


def changed_by_rows(multiply: Multiply) -> list[tuple[int, int]]:
    """The shapes for which a row's product depends on how many rows there are."""
    import torch

    changed = []
    for size, width in SHAPES:
        rows, weight = _numbers(size, width)
        together = [multiply(rows[:number], weight) for number in ROWS]
        first = multiply(rows[:FEWEST], weight)
        last = [multiply(rows[number - FEWEST : number], weight) for number in ROWS]
        begin = all(torch.equal(product[:FEWEST], first) for product in together)
        end = all(torch.equal(product[-FEWEST:], alone) for product, alone in zip(together, last, strict=True))
        if not (begin and end):
            changed.append((size, width))
    return changed


def changed_by_address(multiply: Multiply) -> list[tuple[int, int]]:
    """The shapes for which a product depends on where its factors lie in memory."""
    import torch

    def moved(values: Tensor) -> Tensor:
        """The same numbers, one number further on than where torch would put them."""
        return values.new_empty(values.numel() + 1)[1:].view_as(values).copy_(values)

    changed = []
    for size, width in SHAPES:
        rows, weight = _numbers(size, width)
        if not torch.equal(multiply(rows, weight), multiply(moved(rows), moved(weight))):
            changed.append((size, width))
    return changed


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    return rows @ weight.T


@contextmanager
def _one_thread(*, onednn: bool) -> Iterator[None]:
    """A small check takes long where several threads have to wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with nullcontext() if onednn else without_onednn():
            yield
    finally:
        torch.set_num_threads(threads)


class _OneDNN:
    """Who computes without oneDNN now, and whether it was on before the first of them."""

    lock = threading.Lock()
    num_without = 0
    was_on: Any = True


@contextmanager
def without_onednn() -> Iterator[None]:
    """Within it torch computes without oneDNN, whose products round differently from batch to batch.

    The switch is the whole process's: where several threads are within it, the last to leave switches oneDNN on.
    """
    import torch

    with _OneDNN.lock:
        if _OneDNN.num_without == 0:
            _OneDNN.was_on = torch.backends.mkldnn.enabled
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        _OneDNN.num_without += 1
    try:
        yield
    finally:
        with _OneDNN.lock:
            _OneDNN.num_without -= 1
            if _OneDNN.num_without == 0:
                torch.backends.mkldnn.enabled = _OneDNN.was_on


def _numbers(size: int, width: int) -> tuple[Tensor, Tensor]:
    import torch

    generator = torch.Generator().manual_seed(0)  # leaves the global random state alone
    return torch.randn(max(ROWS), size, generator=generator), torch.randn(width, size, generator=generator)


def _listed(shapes: list[tuple[int, int]]) -> str:
    return ", ".join(f"{size}×{width}" for size, width in shapes)


def _remedy() -> str:
    import torch

    value = os.environ.get(VARIABLE)
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return "No setting is known that prevents it with this build of torch, which has no MKL."
    if value is None:
        return f"Call bough.bit_exact.prepare() before torch loads, or set {VARIABLE}={STRICT} before Python starts."
    if value != STRICT:
        return f"{VARIABLE} is set to {value}: set it to {STRICT}, or leave it unset."
    return f"{VARIABLE}={STRICT} did not prevent it: MKL was used before it was set, or has no strict mode on this CPU."
