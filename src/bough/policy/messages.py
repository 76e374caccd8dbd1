"""Messages from the first process of a run to the others, and its errors with them.

The others may wait for hours while the first one plays episodes. So messages have a process
group of their own, on CPUs and without the usual time limit, and whoever waits can be
interrupted: an error in the first process, or Ctrl-C there, ends all of them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from bough.errors import BoughError, exception_line

T = TypeVar("T")
# Longer than any batch takes to play; gloo has no "forever".
TIME_LIMIT = timedelta(days=30)
POLL_S = 0.002
# How long the first process, which has failed, waits for the others to hear of it.
PATIENCE_S = 3.0
# What gloo says where the process at the other end of a connection is gone.
CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


class ProcessLostError(BoughError):
    """Another process has ended without a word to this one."""

    def __init__(self, message: str = "another process of this run has ended; its own message says why") -> None:
        super().__init__(message)

    @staticmethod
    def explains(error: BaseException) -> bool:
        """Whether an error of torch.distributed only says that another process is gone."""
        return isinstance(error, RuntimeError) and any(words in str(error) for words in CLOSED)


class Messages:
    """Messages within the process group of torch.distributed."""

    _open: tuple[Any, Messages] | None = None

    def __init__(self) -> None:
        self._group = distributed.new_group(backend="gloo", timeout=TIME_LIMIT)
        self._rank, self._count = distributed.get_rank(), distributed.get_world_size()
        self._known: BaseException | None = None  # the error that all processes have

    @classmethod
    def of_all(cls) -> Messages:
        """The messages of the present process group; every process must ask for them at the same point."""
        world = distributed.group.WORLD
        if cls._open is None or cls._open[0] is not world:
            cls._open = world, cls()
        return cls._open[1]

    def deal(self, work: Callable[[], Sequence[T]]) -> T:
        """`Processes.first_deals`."""
        if self._rank:
            received: T = self._received(self._exchange(None))
            return received
        try:
            items = work()
            packed = [pickle.dumps((item, None)) for item in items[1:]]
        except BaseException as error:
            self.report_failure(error)
            self._known = error
            raise
        self._exchange(packed)
        return items[0]

    def report_failure(self, error: BaseException) -> None:
        """Sends an error of the first process; gives up where the others do not wait for a message."""
        if error is self._known:
            return
        try:
            self._exchange([packed_error(error)] * (self._count - 1), patience_s=PATIENCE_S)
        except ProcessLostError:  # they have ended too
            return

    def _received(self, content: bytes) -> Any:
        value, error = pickle.loads(content)  # noqa: S301  written by the first process of this run
        if error is not None:
            self._known = error
            raise error
        return value

    def _exchange(self, messages: list[bytes] | None, *, patience_s: float | None = None) -> bytes:
        """The first process sends one message to each of the others, which pass None and get theirs."""
        sizes = torch.zeros(self._count, dtype=torch.int64)
        if messages is not None:
            sizes[1:] = torch.tensor([len(message) for message in messages])
        deadline = None if patience_s is None else time.monotonic() + patience_s
        _finish(distributed.broadcast(sizes, 0, group=self._group, async_op=True), deadline)
        mine = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        pieces = None if messages is None else [mine, *(_padded(message, len(mine)) for message in messages)]
        _finish(distributed.scatter(mine, pieces, 0, group=self._group, async_op=True), deadline)
        return mine[: int(sizes[self._rank])].numpy().tobytes()


def _finish(work: Any, deadline: float | None) -> None:
    """Waits in Python, where Ctrl-C is heard, until `work` is done or the deadline has passed."""
    while not work.is_completed():
        if deadline is not None and time.monotonic() > deadline:
            raise ProcessLostError()
        time.sleep(POLL_S)
    try:
        work.wait()
    except RuntimeError as error:  # gloo: the connection was closed
        raise ProcessLostError() from error


def _padded(message: bytes, size: int) -> Tensor:
    padded = torch.zeros(size, dtype=torch.uint8)
    padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    return padded


def packed_error(error: BaseException) -> bytes:
    """No value and this error, as a message. What cannot be pickled becomes a BoughError with its text."""
    try:
        content = pickle.dumps((None, error))
        _, copy = pickle.loads(content)  # noqa: S301  our own
        if type(copy) is type(error) and str(copy) == str(error):
            return content
    except Exception:  # noqa: S110  an author's exception may fail in any way
        pass
    same = BoughError(str(error) if isinstance(error, BoughError) else exception_line(error))
    same.exit_code = getattr(error, "exit_code", 1)
    return pickle.dumps((None, same))
