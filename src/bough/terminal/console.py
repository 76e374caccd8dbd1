"""The two streams: results on stdout, progress and notes on stderr.

Text from a model or a web page must not control the terminal: control characters are
replaced by visible ones before they are printed.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

WIDEST = 10_000
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class _Out(Console):
    def on_broken_pipe(self) -> None:
        """A reader that stops early (`| head`) is not a failure; rich would exit with 1."""
        raise BrokenPipeError


def out() -> Console:
    """For results. Plain text when it is not a terminal, so that it can be piped."""
    return _Out(soft_wrap=True, highlight=False)


def err() -> Console:
    """For progress, notes and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def announce(line: str) -> None:
    """A line on stderr that says what begins now."""
    err().print(f"▸ {printable(line)}", style="bold", markup=False)


def is_live(console: Console) -> bool:
    """Whether a progress bar can be drawn: on a terminal, and in a notebook that has ipywidgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def print_json(value: dict[str, Any]) -> None:
    """A report as one JSON object on stdout. Numbers that are not finite become null: JSON has none."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(console: Console, table: Table) -> None:
    """Prints a table. A pipe has no width, so nothing is cut off or wrapped there."""
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table, options=console.options.update(width=WIDEST)).maximum)
    console.print(table)


def progress(what: str, total: int | None = None) -> Progress:
    """A progress bar on stderr, removed when it is done; nothing if stderr is not a terminal."""
    console = err()
    columns = [SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()]
    bar = Progress(*columns, console=console, transient=True, disable=not is_live(console))
    bar.add_task(what, total=total)
    return bar


def printable(text: str) -> str:
    """`text` with its control characters replaced by visible ones."""
    return CONTROL.sub(lambda match: chr(0x2400 + ord(match[0])) if ord(match[0]) < 0x20 else "\ufffd", text)


# A bar that counts steps or episodes, with numbers beside it; plain lines if there is no terminal.

# Seconds between two lines if there is no terminal.
LINE_EVERY_S = 10.0


class NumbersProgress:
    """What the progress of training and of episodes have in common. `unit` is what is counted.

    The first line without a terminal comes right away or, if not `at_once`, after `LINE_EVERY_S`.
    """

    def __init__(self, unit: str, *, at_once: bool) -> None:
        self.console = err()
        columns = (
            TextColumn(unit), MofNCompleteColumn(), BarColumn(),
            TextColumn("{task.fields[numbers]}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not is_live(self.console))
        self._said_at = float("-inf") if at_once else time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def count_to(self, total: int) -> None:
        self.task = self.bar.add_task("", total=total, numbers="")

    def show(self, done: int, numbers: str, line: str) -> None:
        """Moves the bar to `done`; without a terminal prints `line` and the numbers every few seconds."""
        self.bar.update(self.task, completed=done, numbers=numbers)
        if not is_live(self.console) and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self.console.print(f"{line}  {numbers}", markup=False)


# What is seen while a model is made: our steps, and not the bars of the libraries that take them.

logger = logging.getLogger(__name__)


@contextmanager
def steps(title: str, count: int) -> Iterator[Callable[[str], None]]:
    """Give a function that says which of `count` steps begins: a bar on a terminal, a log line anywhere."""
    with progress(title, count) as bar:
        numbers = itertools.count()

        def begin(step: str) -> None:
            logger.info("%s: %s", title, step)
            bar.update(bar.task_ids[0], description=f"{title}: {step}", completed=next(numbers))

        yield begin


@contextmanager
def no_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars."""
    from transformers.utils import logging as transformers_logging

    drawn = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            transformers_logging.enable_progress_bar()
