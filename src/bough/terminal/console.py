"""The two streams: results on stdout, progress and notes on stderr.

Text from a model or a web page must not control the terminal: control characters are
replaced by visible ones before they are printed.
"""

from __future__ import annotations

import json
import math
import re
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
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
