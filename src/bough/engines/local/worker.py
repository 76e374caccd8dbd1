"""The thread that runs the model, step after step, while the event loop stays free."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch

from bough.engines.base import EngineError
from bough.engines.local.reader import Reader
from bough.engines.local.request import Outcome, Request, deliver
from bough.engines.local.schedule import Scheduler, Span

log = logging.getLogger(__name__)

SWITCH_S = 0.0005
GATHER_S = 0.003  # episodes that were answered together come back together, if they are given a moment


class SpanRunner(Protocol):
    """Computes spans, of prompts at most `chunk` tokens at once.

    One that does not mix reads prompts separately from draws, preferably many together.
    """

    mixes: bool
    chunk: int

    def run(self, spans: Sequence[Span]) -> Sequence[Sequence[tuple[int, float]]]:
        """Computes the spans; for each that draws, one or more tokens with their log-probabilities."""


class EngineWorker:
    """Serves requests until it is closed. Everything but `run` may be called from any thread.

    On a GPU it computes on `stream`, by default the same as everything else.
    """

    def __init__(
        self,
        reader: Reader,
        scheduler: Scheduler,
        runner: SpanRunner,
        *,
        threads: int,
        patience: int,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.reader, self.scheduler, self.runner = reader, scheduler, runner
        self.threads, self.patience, self.stream = threads, patience, stream
        self.num_steps = 0
        self._orders: list[Callable[[], None]] = []
        self._wake = threading.Condition()
        self._closed = self._at_work = self._paused = False
        self._thread: threading.Thread | None = None
        self._waited = 0

    def submit(self, request: Request) -> None:
        with self._wake:
            if self._closed:
                raise EngineError("the engine is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="bough-local-engine", daemon=True)
                self._thread.start()
        self.order(lambda: self.scheduler.waiting.append(request))

    def order(self, do: Callable[[], None]) -> None:
        """Has `do` done between two steps, in the order of asking."""
        with self._wake:
            self._orders.append(do)
            self._wake.notify_all()

    def drop(self, episode: Hashable) -> None:
        self.order(lambda: self._drop(episode))

    def drop_all(self, adapter: str | None = None, then: Callable[[], None] = lambda: None) -> None:
        """Drops every episode, or those of one adapter; `then` is done before any other request begins."""

        def drop() -> None:
            known = [(one.adapter, episode) for episode, one in self.scheduler.residents.items()]
            known += [(request.adapter, request.episode) for request in self.scheduler.waiting]
            for name, episode in dict.fromkeys(known):
                if adapter is None or adapter == name:
                    self._drop(episode)
            then()

        self.order(drop)

    def rest(self) -> None:
        """Waits until all orders are done and the model is idle and unchanged."""
        with self._wake:
            self._wake.wait_for(self._resting)

    def pause(self) -> None:
        """Stops between two steps and waits until the model is as it was. Requests and what was computed stay."""
        with self._wake:
            self._paused = True
            self._wake.wait_for(lambda: not self._at_work)
        if self.stream:
            torch.cuda.current_stream(self.reader.device).wait_stream(self.stream)

    def resume(self) -> None:
        """Continues after a pause; first with the orders that came meanwhile."""
        if self.stream:  # weights that were copied meanwhile must be there
            self.stream.wait_stream(torch.cuda.current_stream(self.reader.device))
        with self._wake:
            self._paused = False
            self._wake.notify_all()

    def close(self) -> None:
        """Ends the thread and cancels pending requests."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        torch.set_num_threads(self.threads)
        if self.stream is None:
            self._serve_all()
            return
        self.stream.wait_stream(torch.cuda.default_stream(self.reader.device))
        with torch.cuda.stream(self.stream):
            self._serve_all()
        self.stream.synchronize()

    def _serve_all(self) -> None:
        usual = sys.getswitchinterval()
        while self._wait():
            if not self.runner.mixes:
                time.sleep(GATHER_S)
            # A GPU that has answered must not wait until the event loop's thread lets go of the interpreter.
            sys.setswitchinterval(SWITCH_S if self.reader.device.type == "cuda" else usual)
            with self.reader.reading():
                while self._work():
                    pass
            sys.setswitchinterval(usual)
        self._give_up(EngineError("the engine was closed before the answer was complete"))

    def _wait(self) -> bool:
        """Sleeps until there is something to do; False when it is time to end."""
        with self._wake:
            self._at_work = False
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._closed or self._has_work())
            self._at_work = not self._closed
            return self._at_work

    def _has_work(self) -> bool:
        return not self._paused and (bool(self._orders) or self.scheduler.busy)

    def _resting(self) -> bool:
        idle = self._thread is None or self._closed
        return not self._at_work and (idle or not self._orders)

    def _work(self) -> bool:
        """One step, if there is anything to do."""
        try:
            self._obey()
            self._forget_the_given_up()
            if self._closed or self._paused or not self.scheduler.busy:
                return False
            self.scheduler.admit()
            self._step(self._choose(self.scheduler.spans(self.runner.chunk)))
        except Exception as error:  # whatever broke, pending calls must be told
            log.exception("the local engine failed in a step; every episode is recomputed")
            self._give_up(EngineError(f"the local engine broke: {type(error).__name__}: {error}"))
        return True

    def _obey(self) -> None:
        """Runs every order, then raises if one failed: one failure loses no other order."""
        with self._wake:
            orders, self._orders = self._orders, []
        failure: Exception | None = None
        for do in orders:
            try:
                do()
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def _choose(self, spans: list[Span]) -> list[Span]:
        """A runner that does not mix reads prompts when enough have come, or waited long enough."""
        if self.runner.mixes:
            return spans
        prompts = [span for span in spans if len(span.tokens) > 1]
        drawing = [span for span in spans if len(span.tokens) == 1]
        self._waited += 1
        if prompts and (not drawing or self._waited > self.patience or len(prompts) * 4 >= len(drawing)):
            self._waited = 0
            return prompts
        return drawing

    def _step(self, spans: list[Span]) -> None:
        self.num_steps += 1
        complete: list[tuple[Callable[[Outcome], None], Outcome]] = []
        for span, drawn in zip(spans, self.runner.run(spans), strict=True):
            request = span.request
            if (outcome := request.take(drawn)) is not None:
                self.scheduler.leave(span.resident)
                if isinstance(outcome, EngineError):
                    self.scheduler.drop(request.episode)
                complete.append((request.deliver, outcome))
        deliver(complete)

    def _drop(self, episode: Hashable) -> None:
        resident = self.scheduler.residents.get(episode)
        under_way = [resident.request] if resident and resident.request else []
        under_way += [request for request in self.scheduler.waiting if request.episode == episode]
        for request in under_way:
            request.given_up = True
        self._forget_the_given_up()
        self.scheduler.drop(episode)
        for request in under_way:
            request.deliver(EngineError("the episode was released before its answer was complete"))

    def _forget_the_given_up(self) -> None:
        waiting = self.scheduler.waiting
        for request in [request for request in waiting if request.given_up]:
            waiting.remove(request)
        for resident in list(self.scheduler.running()):
            if resident.request and resident.request.given_up:
                self.scheduler.leave(resident)

    def _give_up(self, error: EngineError) -> None:
        """Nothing that was computed is trusted any more."""
        try:
            self._obey()
        except Exception:  # the thread must go on
            log.exception("the local engine failed in an order")
        under_way = [resident.request for resident in self.scheduler.running() if resident.request]
        for request in [*under_way, *self.scheduler.waiting]:
            request.deliver(error)
        self.scheduler.waiting.clear()
        for episode in list(self.scheduler.residents):
            self.scheduler.drop(episode)
