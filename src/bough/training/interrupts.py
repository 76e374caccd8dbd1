"""Ctrl-C during training: the run stops where it can resume, with a checkpoint of everything learnt so far.

The first SIGINT or SIGTERM is a request: the step that is being computed is finished, a wait for
episodes ends, a checkpoint is saved. The second signal of the same kind raises KeyboardInterrupt
wherever the process is. Signals of different kinds are one request: a launcher that got Ctrl-C
itself often sends SIGTERM to processes that the terminal has interrupted already.

Outside training the command line answers SIGTERM as it answers Ctrl-C (`sigterm_interrupts`).

A thread that no signal reaches, such as that of a learner on a cluster, gets the same request
from `request_stop`.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

from bough.errors import BoughError

log = logging.getLogger(__name__)
# Handlers that only end the process. Any other that somebody else has installed stays.
REPLACED: dict[signal.Signals, list[Any]] = {
    signal.SIGINT: [signal.default_int_handler],
    signal.SIGTERM: [signal.SIG_DFL],
}
_active: list[Interrupts] = []


class StopRequestedError(BoughError):
    """A wait for the next batch has ended because the run is to stop."""


class StoppedError(KeyboardInterrupt):
    """An interrupted run has stopped, in all of its processes. The message says after which step."""


class Interrupts:
    """Requests to stop the run that is in training while its `with` lasts.

    With `quiet` a signal is answered without a word, as in the processes of a run besides the first.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.requested = False
        self._quiet = quiet
        self._signals: SimpleQueue[int | None] = SimpleQueue()
        self._heard: set[int] = set()
        self._handlers: dict[signal.Signals, Any] = {}
        self._callbacks: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._leaving = False

    def request(self) -> None:
        """Asks the run to stop, from any thread."""
        self.requested = True
        with self._lock:
            while self._callbacks:
                self._callbacks.pop()()

    @contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Within it `callback` is called when the run is to stop; if that is known already, now.

        It is called in another thread, at most once, and must end what this thread waits for.
        """
        with self._lock:
            if self.requested:
                callback()
            else:
                self._callbacks.append(callback)
        try:
            yield
        finally:
            with self._lock, suppress(ValueError):  # it was called
                self._callbacks.remove(callback)

    def __enter__(self) -> Self:
        self._process, self._leaving = os.getpid(), False
        self._thread = threading.Thread(target=self._answer, name="interrupts", daemon=True)
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            for number, replaced in REPLACED.items():
                if signal.getsignal(number) in replaced:
                    self._handlers[number] = signal.signal(number, self._hear)
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True  # from here on no signal raises: all handlers must be restored
        _active.remove(self)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        self._signals.put(None)
        self._thread.join()

    def _hear(self, number: int, _: FrameType | None) -> None:
        """The handler. It may run between any two instructions, so it takes no lock and prints nothing."""
        if os.getpid() != self._process:
            _end_fork(number)
            return
        if number in self._heard and not self._leaving:
            raise KeyboardInterrupt
        self._heard.add(number)
        self.requested = True
        self._signals.put(number)

    def _answer(self) -> None:
        """In a thread of its own: does for the first signal what a handler must not do."""
        if self._signals.get() is None:
            return
        if not self._quiet:
            log.warning("Stopping after the current step, with a checkpoint. Ctrl-C again stops immediately.")
        self.request()


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within it SIGTERM does what Ctrl-C does at that moment. A handler that somebody else has installed stays."""
    process, replaced = os.getpid(), REPLACED[signal.SIGTERM]

    def hear(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            _end_fork(number)
            return
        ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(ctrl_c):
            ctrl_c(signal.SIGINT, frame)
        else:  # ignored, as in a shell's background jobs
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) not in replaced:
        yield
        return
    before = signal.signal(signal.SIGTERM, hear)
    replaced.append(hear)
    try:
        yield
    finally:
        replaced.remove(hear)
        signal.signal(signal.SIGTERM, before)


def _end_fork(number: int) -> None:
    """Ends a forked process by a signal, as without the handler that it has from its parent."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def request_stop() -> bool:
    """Asks the run that is in training in this process to stop; False if none is."""
    for interrupts in _active:
        interrupts.request()
    return bool(_active)
