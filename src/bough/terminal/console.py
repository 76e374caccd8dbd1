"""The two streams: results on stdout, everything said along the way on stderr.

What a model or a web page wrote is shown, never obeyed: control characters are replaced
by visible ones before they reach the terminal.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

WIDEST = 10_000
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class _Out(Console):
    def on_broken_pipe(self) -> None:
        """A reader that has seen enough (`| head`) is no failure; rich would exit with 1."""
        raise BrokenPipeError


def out() -> Console:
    """For results. Plain text when it is not a terminal, so that it can be piped."""
    return _Out(soft_wrap=True, highlight=False)


def err() -> Console:
    """For progress, notes and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def is_live(console: Console) -> bool:
    """Whether a progress bar can be drawn: on a terminal, and in a notebook that has ipywidgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def print_table(console: Console, table: Table) -> None:
    """A table. A pipe has no width of its own: nothing is cut off or wrapped there."""
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table, options=console.options.update(width=WIDEST)).maximum)
    console.print(table)


def progress(what: str, total: int | None = None) -> Progress:
    """A bar on stderr that vanishes when it is done; nothing where stderr is no terminal."""
    console = err()
    columns = [SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()]
    bar = Progress(*columns, console=console, transient=True, disable=not is_live(console))
    bar.add_task(what, total=total)
    return bar


def printable(text: str) -> str:
    """`text` with control characters made visible and harmless."""
    return CONTROL.sub(lambda match: chr(0x2400 + ord(match[0])) if ord(match[0]) < 0x20 else "\ufffd", text)
