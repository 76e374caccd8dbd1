"""What is seen while a model is made: our steps, and not the bars of the libraries that take them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def steps(title: str, count: int) -> Iterator[Callable[[str], None]]:
    """Give a function that says which of `count` steps begins: a bar on a terminal, a log line anywhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as progress:
        task = progress.add_task(title, total=count)
        numbers = itertools.count()

        def begin(step: str) -> None:
            logger.info("%s: %s", title, step)
            progress.update(task, description=f"{title}: {step}", completed=next(numbers))

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
