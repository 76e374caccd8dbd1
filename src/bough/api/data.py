"""`bough.write`, `bough.convert`, `bough.validate`, `bough.stats`, `bough.show`: data files and records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from bough.api.inputs import Source, StrPath, as_file, is_path, records_of
from bough.api.records import Facts, Records
from bough.api.settings import make_config, settings_of
from bough.config.data import ConvertConfig, StatsConfig, ValidateConfig
from bough.errors import InputError
from bough.formats import named, writable
from bough.formats.base import Format, Sample
from bough.plural import plural
from bough.terminal import console, transcript
from bough.trajectories.convert import NotConvertedError
from bough.trajectories.convert import convert as convert_file
from bough.trajectories.reader import Problem, Reader
from bough.trajectories.statistics import Statistics
from bough.trajectories.writer import ENDINGS

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
        if not config.output.name.endswith(ENDINGS):
            raise InputError(f"{config.output}: the name must end in .jsonl or .jsonl.zst")
        if config.output.exists() and not config.overwrite:
            raise InputError(f"{config.output} exists; overwrite=True replaces it")
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
    if is_path(source):
        config = make_config(StatsConfig, "stats", settings, file=Path(source))
        reader = Reader(config.source.file, format=config.source.format, on_error="skip")
        for sample in reader:
            statistics.add(sample)
        skipped = reader.skipped
    else:
        for sample in records_of(source):
            statistics.add(sample)
    more = {"skipped": ", ".join(f"{count} {reason}" for reason, count in skipped.items())} if skipped else {}
    return Facts({**dict(statistics.rows()), **more})


def show(record: Sample) -> None:
    """Print one trajectory, pair or group as a readable transcript."""
    transcript.show(console.out(), record, type(record).__name__.lower())


def _shown(problems: list[Problem]) -> list[str]:
    more = [f"and {len(problems) - PROBLEMS_SHOWN} more"] if len(problems) > PROBLEMS_SHOWN else []
    return [console.printable(str(problem)) for problem in problems[:PROBLEMS_SHOWN]] + more
