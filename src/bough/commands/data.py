"""`bough.write`, `bough.convert`, `bough.validate`, `bough.stats`, `bough.show`: data files and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.progress import Progress
from rich.table import Table

from bough.commands.objects import Facts, Records, Source, StrPath, as_file, is_path, records_of
from bough.commands.table import Command
from bough.config.base import Config
from bough.config.groups import ReportConfig
from bough.config.keywords import make_config, settings_of
from bough.data import transcript
from bough.data.base import Format, Sample
from bough.data.reader import FORMATS, Problem, Problems, Reader, SourceConfig, Statistics, named, writable
from bough.data.writer import ConvertConfig, NotConvertedError, check_output
from bough.data.writer import convert as convert_file
from bough.errors import InputError
from bough.ledger import plural
from bough.terminal import console


class StatsConfig(ReportConfig):
    """Prints counts, lengths and rewards of a data file."""

    source: SourceConfig


class ValidateConfig(ReportConfig):
    """Lists the bad rows of a data file as file:line, one line per problem, and counts them by reason.

    Exits with 2 if there is a bad row.
    """

    source: SourceConfig


class ShowConfig(Config):
    """Prints records as readable transcripts."""

    source: SourceConfig
    index: int = Field(0, ge=0, description="the first record to show, counted from 0")
    count: int = Field(1, ge=1, description="number of records to show")


class FormatsConfig(ReportConfig):
    """Lists the file formats that Bough reads and writes."""


PROBLEMS_SHOWN = 10


@settings_of(ConvertConfig, "file", "on_error")
def write(records: Source, output: StrPath, **settings: Any) -> Path:
    """Write records to a .jsonl or .jsonl.zst file; returns its path.

    A record that the format cannot keep exactly is an InputError, and nothing is written.
    """
    if is_path(records):
        raise InputError(f"{records!r} is a path; bough.convert writes a file in another format")
    return _convert("write", records, output, settings)


@settings_of(ConvertConfig, "file")
def convert(source: Source, output: StrPath, **settings: Any) -> Path:
    """Write a data file in another format; returns the new file's path."""
    return _convert("convert", source, output, settings)


def _convert(function: str, source: Source, output: StrPath, settings: dict[str, Any]) -> Path:
    with as_file(source) as file:
        config = make_config(ConvertConfig, function, settings, file=file, output=Path(output))
        target = _writable(config.to)
        check_output(config.output, config.overwrite)
        problems: list[Problem] = []
        try:
            convert_file(config, target, problems.append)
        except NotConvertedError:
            raise InputError(
                f"{plural(len(problems), 'record')} cannot be written as {target.name}:", _shown(problems)
            ) from None
    return config.output


def _writable(name: str) -> Format:
    format = named(name)
    if format.write is None:
        raise InputError(f"the format {name} can only be read; writable: {', '.join(writable())}")
    return format


@settings_of(ValidateConfig, "file")
def validate(source: StrPath, **settings: Any) -> Records[Problem]:
    """Every bad row of a data file, with its file, line, reason and message; an empty list where all are good."""
    config = make_config(ValidateConfig, "validate", settings, file=Path(source))
    problems: list[Problem] = []
    reader = Reader(config.source.file, format=config.source.format, on_error="skip", on_problem=problems.append)
    good = sum(1 for _ in reader)
    counts = {"rows": reader.rows, "good": good, "bad": len(problems), "reasons": dict(reader.skipped.most_common())}
    summary = [f"{plural(reader.rows, 'row')}: {good} good, {len(problems)} bad", *_shown(problems)]
    return Records(problems, "\n".join(summary), report=counts)


@settings_of(StatsConfig, "file")
def stats(source: Source, **settings: Any) -> Facts:
    """What a data file or some records contain, in numbers."""
    statistics, skipped = Statistics(), Counter[str]()
    samples: Iterable[Sample]
    if is_path(source):
        config = make_config(StatsConfig, "stats", settings, file=Path(source))
        samples = reader = Reader(config.source.file, format=config.source.format, on_error="skip")
        skipped = reader.skipped
    else:
        samples = records_of(source)
    for sample in samples:
        statistics.add(sample)
    more = {"skipped": ", ".join(f"{count} {reason}" for reason, count in skipped.items())} if skipped else {}
    return Facts({**dict(statistics.rows()), **more})


def show(record: Sample) -> None:
    """Print one trajectory, pair or group as a readable transcript."""
    transcript.show(console.out(), record, type(record).__name__.lower())


def _shown(problems: list[Problem]) -> list[str]:
    more = [f"and {len(problems) - PROBLEMS_SHOWN} more"] if len(problems) > PROBLEMS_SHOWN else []
    return [console.printable(str(problem)) for problem in problems[:PROBLEMS_SHOWN]] + more


# `bough data`: look at, check and convert data files.


def stats_command(config: StatsConfig) -> int:
    reader = Reader(config.source.file, format=config.source.format, on_error="skip")
    statistics = Statistics()
    for sample in _with_progress(reader):
        statistics.add(sample)
    about = _about(reader)
    if config.as_json:
        console.print_json(about | statistics.to_json() | {"skipped": dict(reader.skipped)})
        return 0
    console.out().print(repr(Facts(about | dict(statistics.rows()))), markup=False)
    _print_skipped(reader.skipped)
    return 0


def validate_command(config: ValidateConfig) -> int:
    """Reports every bad row on stdout, one line per problem; exit 2 if there is one."""
    problems = Problems()
    reader = Reader(config.source.file, format=config.source.format, on_error="skip", on_problem=problems.add)
    good = sum(1 for _ in _with_progress(reader))
    about, bad = _about(reader), problems.reasons.total()
    if config.as_json:
        counts = {"rows": reader.rows, "good": good, "bad": bad, "reasons": dict(problems.reasons.most_common())}
        console.print_json(about | counts | {"problems": problems.to_json()})
    else:
        lines = [*problems.lines(), f"{plural(reader.rows, 'row')} read as {about['format']}: {good} good, {bad} bad"]
        lines += [f"  {count} {reason}" for reason, count in problems.reasons.most_common()]
        for line in lines:
            console.out().print(console.printable(line), markup=False)
    return 2 if problems else 0


def convert_command(config: ConvertConfig) -> int:
    """Writes the whole output or, on an error, nothing."""
    target = _writable(config.to)
    check_output(config.output, config.overwrite)
    problems = Problems()
    try:
        written = convert_file(config, target, problems.add, _with_progress)
    except NotConvertedError as error:
        why = f"{config.source.file}: no row could be converted, so nothing was written"
        if error.bad:
            rows = plural(error.bad, "bad row")
            why = f"{config.source.file} has {rows}, so nothing was written (--on-error skip drops them):"
        raise InputError(why, [console.printable(line) for line in problems.lines()]) from None
    if config.as_json:
        about = {"file": str(config.source.file), "output": str(config.output), "format": target.name}
        console.print_json(about | {"written": written, "skipped": dict(problems.reasons)})
        return 0
    console.err().print(f"{plural(written, 'row')} written to {config.output} as {target.name}", markup=False)
    _print_skipped(problems.reasons)
    return 0


def show_command(config: ShowConfig) -> int:
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


def formats_command(config: FormatsConfig) -> int:
    if config.as_json:
        listed = [
            {"name": f.name, "read": True, "write": f.write is not None, "about": f.about} for f in FORMATS.values()
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


def _about(reader: Reader) -> dict[str, str]:
    if not reader.rows:
        raise InputError(f"{reader.source}: the file contains no rows")
    return {"file": str(reader.source), "format": reader.format.name if reader.format else "unknown"}


def _print_skipped(skipped: Counter[str]) -> None:
    if skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common())
        console.err().print(f"skipped {plural(skipped.total(), 'bad row')}: {reasons}", style="yellow")


COMMANDS = {
    "data stats": Command(StatsConfig, stats_command, "  bough data stats sft.jsonl\n  bough data stats trajectories/"),
    "data validate": Command(
        ValidateConfig,
        validate_command,
        "  bough data validate pairs.jsonl\n  bough data validate pairs.jsonl --format trl",
    ),
    "data convert": Command(
        ConvertConfig,
        convert_command,
        "  bough data convert sft.jsonl --to trl -o sft-trl.jsonl\n"
        "  bough data convert pairs.parquet --to bough -o pairs.jsonl.zst --on-error skip",
    ),
    "data show": Command(ShowConfig, show_command, "  bough data show sft.jsonl --index 3 --count 2"),
    "data formats": Command(FormatsConfig, formats_command),
}
