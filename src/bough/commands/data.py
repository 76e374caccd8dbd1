"""`bough data`: look at, check and convert data files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from bough.config.data import ConvertConfig, FormatsConfig, ShowConfig, SourceConfig, StatsConfig, ValidateConfig
from bough.errors import BoughError, InputError, RowError
from bough.formats import FORMATS, named
from bough.formats.base import Sample
from bough.terminal import console, transcript
from bough.trajectories.reader import Problem, Reader
from bough.trajectories.statistics import Statistics
from bough.trajectories.writer import Writer

# More than this many named rows help nobody; the counts by reason are always whole.
PROBLEMS_SHOWN = 50


def stats(config: StatsConfig) -> int:
    reader = Reader(config.file, format=config.format, on_error="skip")
    statistics = Statistics()
    for sample in _with_progress(reader):
        statistics.add(sample)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in [("file", str(config.file)), ("format", _format_name(reader)), *statistics.rows()]:
        table.add_row(name, value)
    console.out().print(table)
    _say_skipped(reader)
    return 0


def validate(config: ValidateConfig) -> int:
    """Every bad row on stdout as file:line: what; exit 2 if there is one."""
    out = console.out()
    reader = Reader(
        config.file,
        format=config.format,
        on_error="skip",
        on_problem=lambda problem: out.print(console.printable(str(problem)), markup=False),
    )
    good = sum(1 for _ in _with_progress(reader))
    out.print(f"{reader.rows} rows read as {_format_name(reader)}: {good} good, {reader.skipped.total()} bad")
    for reason, count in reader.skipped.most_common():
        out.print(f"  {count} {reason}")
    if reader.rows == 0:
        raise InputError(f"{config.file}: the file holds no rows")
    return 2 if reader.skipped else 0


def convert(config: ConvertConfig) -> int:
    """Writes beside the output and renames at the end: a failure leaves nothing half done."""
    target = named(config.to)
    if target.write is None:
        raise InputError(f"--to {config.to}: this format can only be read; writable: {', '.join(_writable())}")
    if not config.output.name.endswith((".jsonl", ".jsonl.zst")):
        raise InputError(f"--output {config.output}: the name must end in .jsonl or .jsonl.zst")
    if config.output.exists() and not config.overwrite:
        raise InputError(f"{config.output} exists; give another --output or --overwrite")
    problems: list[Problem] = []
    reader = Reader(config.file, format=config.format, on_error="skip", on_problem=problems.append)
    with _beside(config.output) as path, Writer(path, format=target, batch=1024) as writer:
        for sample in _with_progress(reader):
            try:
                writer.write(sample)
            except RowError as error:
                problems.append(Problem(reader.place.file, reader.place.line, error.reason, str(error)))
        writer.flush()
        fatal = [problem for problem in problems if problem.reason != "torn"]
        if config.on_error == "stop" and fatal:
            raise _too_bad(config, fatal)
        if not writer.written:
            raise InputError(f"{config.file}: no row could be converted, so nothing was written", _shown(problems))
    console.err().print(f"{writer.written} rows written to {config.output} as {target.name}", markup=False)
    _say_reasons(Counter(problem.reason for problem in problems))
    return 0


def show(config: ShowConfig) -> int:
    reader = Reader(config.file, format=config.format, on_error="skip")
    out, shown = console.out(), 0
    for shown, sample in enumerate(islice(reader, config.index, config.index + config.count), 1):
        place = reader.place
        transcript.show(
            out, sample, f"{place.file}:{place.line} ({type(sample).__name__.lower()} {config.index + shown - 1})"
        )
    if not shown:
        good = reader.rows - reader.skipped.total()
        raise InputError(
            f"{config.file} has {good} good records; --index {config.index} is past the end (it counts from 0)"
        )
    return 0


def formats(config: FormatsConfig) -> int:  # noqa: ARG001  every verb takes its settings
    table = Table("format", "read", "write", "what", box=None, pad_edge=False)
    for format in FORMATS.values():
        table.add_row(format.name, "✓", "✓" if format.write else "", format.about)
    console.out().print(table)
    return 0


def _with_progress(reader: Reader) -> Iterator[Sample]:
    bar: Progress
    with console.progress(f"reading {Path(reader.source).name}") as bar:
        for number, sample in enumerate(reader, 1):
            if number % 256 == 0:
                bar.update(bar.task_ids[0], completed=number)
            yield sample


@contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """A path to write to that becomes `output` if all goes well and vanishes if not."""
    ending = ".jsonl.zst" if output.name.endswith(".zst") else ".jsonl"
    beside = output.with_name(f".{output.name}.{os.getpid()}{ending}")
    try:
        yield beside
        beside.rename(output)
    finally:
        beside.unlink(missing_ok=True)


def _too_bad(config: SourceConfig, problems: list[Problem]) -> BoughError:
    count = f"{len(problems)} bad row{'s' if len(problems) > 1 else ''}"
    return InputError(
        f"{config.file} has {count}, so nothing was written (--on-error skip leaves them out):", _shown(problems)
    )


def _shown(problems: list[Problem]) -> list[str]:
    more = [f"and {len(problems) - PROBLEMS_SHOWN} more"] if len(problems) > PROBLEMS_SHOWN else []
    return [console.printable(str(problem)) for problem in problems[:PROBLEMS_SHOWN]] + more


def _say_skipped(reader: Reader) -> None:
    if not reader.rows:
        raise InputError(f"{reader.source}: the file holds no rows")
    _say_reasons(reader.skipped)


def _say_reasons(skipped: Counter[str]) -> None:
    if skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common())
        console.err().print(f"skipped {skipped.total()} bad rows: {reasons}", style="yellow")


def _format_name(reader: Reader) -> str:
    return reader.format.name if reader.format else "unknown"


def _writable() -> list[str]:
    return [format.name for format in FORMATS.values() if format.write]
