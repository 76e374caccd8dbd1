"""Large linear layers with weights packed in advance, for the few rows of a decode step on a CPU.

BLAS copies a weight into the order that its kernel reads, for every product; with few rows that
takes longer than the product itself. The kernels of oneDNN, on ARM those of the Arm Compute
Library behind it, take weights that were packed once. The packed weights lie beside the
policy's own: as much memory again as these layers take. Call `renew` after weights have changed.

A row's bits must not depend on the other rows, so every shape of weight is tried first, with the
number of threads that computes. oneDNN on x86_64 keeps them from two rows on, and the engine never
multiplies a single one; with weights that are not packed it does not.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from ctypes import CDLL
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bough.engines.local.memory import free_bytes

X86 = platform.machine() in ("x86_64", "AMD64")
# Bytes of a weight: with smaller ones the call itself takes longer than what is saved.
SMALLEST = 1 << (18 if X86 else 20)
ROWS = (3, 5, 8, 16, 33, 129, 600)  # numbers of rows that are tried against two
MOST_PRODUCTS = 1 << 28  # and multiplications of one try: a head never has many rows


class PackedLinears:
    """The large linear layers of a model on the CPU, in float32. Within `inside` they compute with packed weights."""

    def __init__(self, layers: Iterable[nn.Linear]) -> None:
        self.layers = list(layers)
        self._packed: list[Tensor] = []
        self.renew()

    def renew(self) -> None:
        """Packs the newest weights."""
        self._packed = []  # frees the old ones first
        with torch.inference_mode():
            self._packed = [_pack(layer.weight) for layer in self.layers]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within it the layers use their packed weights; gradients cannot be taken."""
        threads = torch.get_num_threads()
        if _on_arm() and 1 < threads < _num_cores():  # the Arm Compute Library knows one thread or all
            yield
            return
        shapes = {layer.weight.shape for layer in self.layers}
        agreed = {shape for shape in shapes if rows_agree(*shape, threads)}
        used = [(number, layer) for number, layer in enumerate(self.layers) if layer.weight.shape in agreed]
        for number, layer in used:
            layer.forward = partial(self._compute, number)  # type: ignore[method-assign]
        try:
            with _no_team() if _on_arm() and threads == 1 else nullcontext():
                yield
        finally:
            for _, layer in used:
                del layer.forward

    def _compute(self, number: int, x: Tensor) -> Tensor:
        # Looked up in each call: weights may be renewed while the engine is at work.
        return _product(self._packed[number], self.layers[number].bias, x)


def packable(modules: Iterable[nn.Module]) -> list[nn.Linear]:
    """The layers among these that gain from packing and keep their bits, if memory holds their weights once more."""
    if not _available():
        return []
    large = [module for module in dict.fromkeys(modules) if type(module) is nn.Linear and _large(module.weight)]
    threads = torch.get_num_threads()
    large = [layer for layer in large if "forward" not in layer.__dict__ and rows_agree(*layer.weight.shape, threads)]
    fits = free_bytes(torch.device("cpu")) > sum(layer.weight.nbytes for layer in large)
    return large if fits else []


@cache
def rows_agree(outputs: int, inputs: int, threads: int) -> bool:  # noqa: ARG001
    """Whether a row's product with a packed weight of this shape has the same bits beside any number of rows.

    `threads` are torch's own at the moment: with another number the answer may be another.
    """
    most = max(MOST_PRODUCTS // (outputs * inputs), min(ROWS))
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        rows = torch.randn(max(ROWS), inputs, generator=generator)
        packed = _pack(torch.randn(outputs, inputs, generator=generator))
        for number in (number for number in ROWS if number <= most):
            product = _product(packed, None, rows[:number])
            if not torch.equal(product[:2], _product(packed, None, rows[:2])):
                return False
            if not torch.equal(product[-2:], _product(packed, None, rows[number - 2 : number])):
                return False
    return True


def _large(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.nbytes >= SMALLEST


def _available() -> bool:
    library: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return library and (X86 or _on_arm()) and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def _on_arm() -> bool:
    """Whether oneDNN leaves its products to the Arm Compute Library."""
    found: bool = torch.backends.mkldnn.is_acl_available()  # type: ignore[no-untyped-call]
    return found


def _pack(weight_OI: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), None)
    return packed


def _product(packed: Tensor, bias_O: Tensor | None, x: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias_O, "none", [], "")
    return out


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _no_team() -> Iterator[None]:
    """Leaves all work to the calling thread: the library starts as many threads as there are cores, whatever torch
    was told, and where others compute too, waiting for them takes longer than they save."""
    openmp = _openmp()
    if openmp is None:
        yield
        return
    before = openmp.omp_get_max_active_levels()
    openmp.omp_set_max_active_levels(0)
    try:
        yield
    finally:
        openmp.omp_set_max_active_levels(before)


@cache
def _openmp() -> CDLL | None:
    """The OpenMP library that came with torch."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return CDLL(str(found[0])) if found else None
