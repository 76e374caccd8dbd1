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
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

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


REMEDY = (
    f"Call bough.bit_exact.prepare() before torch loads, or set {VARIABLE}={STRICT} before Python starts. "
    "With a build of torch without MKL, or on a CPU without its strict mode, no setting is known that prevents it."
)


@cache
def warn_if_batches_differ() -> None:
    """Says, once per process, that what is drawn may depend on the rest of the batch."""
    if shapes := batches_differ():
        log.warning(
            "On this machine the tokens drawn for an episode may change with what else is in the batch: "
            "matrix products round a row differently with the number of rows (%s). %s",
            ", ".join(shapes),
            REMEDY,
        )


@cache
def warn_if_runs_differ() -> None:
    """Says, once per process, that a resumed run may differ from an uninterrupted one."""
    if shapes := changed(same_anywhere):
        log.warning(
            "On this machine a resumed run may differ in the last bits from one that was never stopped: "
            "matrix products round differently with their place in memory (%s). %s",
            ", ".join(shapes),
            REMEDY,
        )


@cache
def batches_differ() -> list[str]:
    """The shapes for which the engine's results depend on the rest of the batch; it takes 0.1 s, once per process."""
    with without_onednn():  # as the engine computes
        return changed(same_in_any_batch)


def changed(same: Callable[[Tensor, Tensor], bool]) -> list[str]:
    """The shapes of layers for which `same`, a check of rows of numbers and a weight, does not hold."""
    import torch

    generator = torch.Generator()  # leaves the global random state alone
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several have to wait for each other, which takes longer
    try:
        found = []
        for size, width in SHAPES:
            generator.manual_seed(0)
            rows = torch.randn(max(ROWS), size, generator=generator)
            if not same(rows, torch.randn(width, size, generator=generator)):
                found.append(f"{size}×{width}")
        return found
    finally:
        torch.set_num_threads(threads)


def same_in_any_batch(rows: Tensor, weight: Tensor) -> bool:
    """Whether a row's product does not depend on how many rows there are."""
    import torch

    first = product(rows[:FEWEST], weight)
    for number in ROWS:
        together, last = product(rows[:number], weight), product(rows[number - FEWEST : number], weight)
        if not torch.equal(together[:FEWEST], first) or not torch.equal(together[-FEWEST:], last):
            return False
    return True


def same_anywhere(rows: Tensor, weight: Tensor) -> bool:
    """Whether a product does not depend on where its factors lie in memory."""
    import torch

    # The same numbers, one number further on than where torch would put them.
    moved = [one.new_empty(one.numel() + 1)[1:].view_as(one).copy_(one) for one in (rows, weight)]
    return torch.equal(product(rows, weight), product(*moved))


def product(rows: Tensor, weight: Tensor) -> Tensor:
    return rows @ weight.T


_lock = threading.Lock()
_num_without_onednn = 0
_onednn_was_on: Any = True


@contextmanager
def without_onednn() -> Iterator[None]:
    """Within it torch computes without oneDNN, whose products round differently from batch to batch.

    The switch is the whole process's: where several threads are within it, the last to leave switches oneDNN on.
    """
    import torch

    global _num_without_onednn, _onednn_was_on
    with _lock:
        if _num_without_onednn == 0:
            _onednn_was_on = torch.backends.mkldnn.enabled
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        _num_without_onednn += 1
    try:
        yield
    finally:
        with _lock:
            _num_without_onednn -= 1
            if _num_without_onednn == 0:
                torch.backends.mkldnn.enabled = _onednn_was_on
