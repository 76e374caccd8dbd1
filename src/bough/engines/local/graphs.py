"""A step as a CUDA graph: recorded once for each shape, then played back in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM_UP = 2  # kernels choose their ways, and libraries take their memory, before anything is recorded


class Graphs:
    """Plays `step(*shape)` back. The step reads tensors that stay where they are, and only those."""

    def __init__(self, step: Callable[..., Tensor]) -> None:
        self.step = step
        self._recorded: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __contains__(self, shape: tuple[Any, ...]) -> bool:
        return shape in self._recorded

    def record(self, *shape: Any) -> None:
        """Records a shape; the step is computed for it a few times, with all its effects."""
        self._recorded[shape] = self._record(shape)

    def forget(self) -> None:
        """Drops what was recorded: the step has changed."""
        self._recorded, self._pool = {}, None

    def __call__(self, *shape: Any) -> Tensor:
        if shape not in self._recorded:
            self.record(*shape)
        graph, output = self._recorded[shape]
        graph.replay()
        return output

    def _record(self, shape: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # Kernels keep the priority of the stream on which they are recorded: beside a trainer's they go first.
        # All graphs share one stream, because memory of a pool is used again only on the stream that had it.
        self._stream = stream = self._stream or torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.step(*shape)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Others may use the GPU meanwhile, from other threads.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = self.step(*shape)
        self._pool = self._pool or graph.pool()
        return graph, output
