"""Writes checkpoints in the background: training goes on as soon as their tensors are copied.

One is written at a time, and the next waits for it. A kill finds the one before it whole, as ever:
a checkpoint gets its name when it is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from torch import Tensor

log = logging.getLogger(__name__)


class CheckpointWriter:
    """Runs one function at a time in a thread. On leaving its `with` the last one is done.

    What the function raises is raised by the next `check`, `wait` or `begin`.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[Any] | None = None

    def begin(self, write: Callable[[], Any]) -> None:
        """Starts to write, after what is being written."""
        self.wait()
        self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raises what writing failed with, if it is over."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Returns when everything is written."""
        if (writing := self._writing) is None:
            return
        try:
            writing.result()
        finally:
            if writing.done():  # else the wait was interrupted, and `__exit__` waits for the rest
                self._writing = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            log.error("%s", failure)


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the CPU's memory, which training does not change. A tensor under two names stays one."""
    copies: dict[tuple[Any, ...], Tensor] = {}
    found = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else (name,)
        if key not in copies:
            copies[key] = tensor.detach().to("cpu", copy=True)
        found[name] = copies[key]
    return found
