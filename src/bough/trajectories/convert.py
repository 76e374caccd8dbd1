"""Writes a data file in another format: the whole file, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bough.config.data import ConvertConfig
from bough.disk import replacing
from bough.errors import RowError
from bough.formats.base import Format, Sample
from bough.trajectories.problems import Problem
from bough.trajectories.reader import Reader
from bough.trajectories.writer import Writer


class NotConvertedError(Exception):
    """No file was written: `bad` rows stopped the conversion, or, if 0, there was no row to write."""

    def __init__(self, bad: int) -> None:
        super().__init__(bad)
        self.bad = bad


def convert(
    config: ConvertConfig,
    target: Format,
    on_problem: Callable[[Problem], None],
    each: Callable[[Reader], Iterable[Sample]] = iter,
) -> int:
    """Writes the records of the settings' file as `target`; returns the number written.

    `on_problem` gets every row that cannot be read or written. `each` iterates over the
    records, for a progress bar. Raises NotConvertedError where nothing is written.
    """
    bad = 0

    def report(problem: Problem) -> None:
        nonlocal bad
        bad += problem.reason != "torn"  # a line cut off by a crash never stops the reading
        on_problem(problem)

    reader = Reader(config.source.file, format=config.source.format, on_error="skip", on_problem=report)
    with replacing(config.output) as path, Writer(path, format=target, batch=1024) as writer:
        for sample in each(reader):
            try:
                writer.write(sample)
            except RowError as error:
                report(Problem(reader.place.file, reader.place.line, error.reason, str(error)))
        writer.flush()
        stopped = bad if config.on_error == "stop" else 0
        if stopped or not writer.written:
            raise NotConvertedError(stopped)
    return writer.written
