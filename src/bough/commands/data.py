"""`bough data`: look at, check and convert data files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from bough.config.data import ConvertConfig, FormatsConfig, ShowConfig, StatsConfig, ValidateConfig
from bough.errors import InputError
from bough.formats import FORMATS, named, writable
from bough.formats.base import Sample
from bough.plural import plural
from bough.terminal import console, transcript
from bough.trajectories.convert import NotConvertedError
from bough.trajectories.convert import convert as convert_file
from bough.trajectories.problems import Problems
from bough.trajectories.reader import Reader
from bough.trajectories.statistics import Statistics
from bough.trajectories.writer import check_output


def stats(config: StatsConfig) -> int:
    reader = Reader(config.source.file, format=config.source.format, on_error="skip")
    statistics = Statistics()
    for sample in _with_progress(reader):
        statistics.add(sample)
    _check_not_empty(reader)
    if config.as_json:
        about = {"file": str(config.source.file), "format": _format_name(reader)}
        console.print_json(about | statistics.to_json() | {"skipped": dict(reader.skipped)})
        return 0
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in [("file", str(config.source.file)), ("format", _format_name(reader)), *statistics.rows()]:
        table.add_row(name, value)
    console.out().print(table)
    _print_skipped(reader.skipped)
    return 0


def validate(config: ValidateConfig) -> int:
    """Reports every bad row on stdout, one line per problem; exit 2 if there is one."""
    problems = Problems()
    reader = Reader(config.source.file, format=config.source.format, on_error="skip", on_problem=problems.add)
    good = sum(1 for _ in _with_progress(reader))
    _check_not_empty(reader)
    bad = problems.reasons.total()
    if config.as_json:
        about = {"file": str(config.source.file), "format": _format_name(reader)}
        counts = {"rows": reader.rows, "good": good, "bad": bad, "reasons": dict(problems.reasons.most_common())}
        console.print_json(about | counts | {"problems": problems.to_json()})
        return 2 if problems else 0
    out = console.out()
    for line in problems.lines():
        out.print(console.printable(line), markup=False)
    out.print(f"{plural(reader.rows, 'row')} read as {_format_name(reader)}: {good} good, {bad} bad")
    for reason, count in problems.reasons.most_common():
        out.print(f"  {count} {reason}")
    return 2 if problems else 0


def convert(config: ConvertConfig) -> int:
    """Writes the whole output or, on an error, nothing."""
    target = named(config.to)
    if target.write is None:
        raise InputError(f"--to {config.to}: this format can only be read; writable: {', '.join(writable())}")
    check_output(config.output, config.overwrite)
    problems = Problems()
    try:
        written = convert_file(config, target, problems.add, _with_progress)
    except NotConvertedError as error:
        if not error.bad:
            raise InputError(
                f"{config.source.file}: no row could be converted, so nothing was written", _shown(problems)
            ) from None
        rows = f"{error.bad} bad row{'s' if error.bad > 1 else ''}"
        raise InputError(
            f"{config.source.file} has {rows}, so nothing was written (--on-error skip drops them):", _shown(problems)
        ) from None
    if config.as_json:
        about = {"file": str(config.source.file), "output": str(config.output), "format": target.name}
        console.print_json(about | {"written": written, "skipped": dict(problems.reasons)})
        return 0
    console.err().print(f"{plural(written, 'row')} written to {config.output} as {target.name}", markup=False)
    _print_skipped(problems.reasons)
    return 0


def show(config: ShowConfig) -> int:
    reader = Reader(config.source.file, format=config.source.format, on_error="skip")
    out, shown = console.out(), 0
    for shown, sample in enumerate(islice(reader, config.index, config.index + config.count), 1):
        place = reader.place
        transcript.show(out, sample, f"{place} ({type(sample).__name__.lower()} {config.index + shown - 1})")
    if not shown:
        good = reader.rows - reader.skipped.total()
        raise InputError(
            f"{config.source.file} has {plural(good, 'good record')}; "
            f"--index {config.index} is past the end (it counts from 0)"
        )
    return 0


def formats(config: FormatsConfig) -> int:
    if config.as_json:
        listed = [
            {"name": one.name, "read": True, "write": one.write is not None, "about": one.about}
            for one in FORMATS.values()
        ]
        console.print_json({"formats": listed})
        return 0
    table = Table("format", "read", "write", "description", box=None, pad_edge=False)
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


def _shown(problems: Problems) -> list[str]:
    return [console.printable(line) for line in problems.lines()]


def _check_not_empty(reader: Reader) -> None:
    if not reader.rows:
        raise InputError(f"{reader.source}: the file contains no rows")


def _print_skipped(skipped: Counter[str]) -> None:
    if skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common())
        console.err().print(f"skipped {plural(skipped.total(), 'bad row')}: {reasons}", style="yellow")


def _format_name(reader: Reader) -> str:
    return reader.format.name if reader.format else "unknown"
