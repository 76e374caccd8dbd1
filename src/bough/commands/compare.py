"""`bough compare`: compares result files of `bough eval --environment`."""

from __future__ import annotations

from pathlib import Path

from bough.config.evaluation import CompareConfig
from bough.disk import write_json
from bough.errors import InputError
from bough.evaluation.comparison import compare as compare_models
from bough.evaluation.gate import gate
from bough.evaluation.results import ModelResult, Results
from bough.evaluation.success import report
from bough.terminal import console
from bough.terminal.evaluation import show


def compare(config: CompareConfig) -> int:
    files = {path: Results.read(path) for path in config.files}
    _comparable(files)
    models = _named_apart(files)
    if len(models) < 2:
        raise InputError(f"{config.files[0]} contains one model; a comparison needs two: give a second file")
    early = any(results.stop_width is not None for results in files.values())
    found = compare_models(models, against=config.against, level=config.level, sequential=early)
    reports = {
        model.name: report(model.outcomes, lost=model.lost, level=config.level, sequential=early).to_json()
        for model in models
    }
    comparisons = [one.to_json() for one in found]
    alpha = round(1.0 - config.level, 12)
    decision = gate(models[0], models[-1], alpha=alpha, sequential=early) if config.gate else None
    decided = decision.to_json() if decision is not None else None
    result = {"reports": reports, "comparisons": comparisons, "gate": decided}
    if config.as_json:
        console.print_json(result | {"notes": _notes(models)})
    else:
        show(reports, comparisons, config.level)
        for note in _notes(models):
            console.out().print(console.printable(f"note: {note}"), style="yellow", markup=False)
        if decision is not None:
            console.out().print(console.printable(f"\n{decision.reason}"), style="bold", markup=False)
    if config.output:
        write_json(config.output, result)
    return 0 if decision is None or decision.promote else 1


def _comparable(files: dict[Path, Results]) -> None:
    """Results from different environments, splits or seeds cannot be compared."""
    (first, reference), *others = files.items()
    problems = [
        f"{what} is {getattr(reference, what)!r} in {first} and {getattr(results, what)!r} in {path}"
        for path, results in others
        for what in ("environment", "options", "split", "seed")
        if getattr(results, what) != getattr(reference, what)
    ]
    if problems:
        raise InputError("these results cannot be compared:", problems)


def _named_apart(files: dict[Path, Results]) -> list[ModelResult]:
    """All models; a name that occurs in several files gets the file added."""
    names = [model.name for results in files.values() for model in results.models]
    return [
        model.model_copy(update={"name": f"{model.name} ({path})"}) if names.count(model.name) > 1 else model
        for path, results in files.items()
        for model in results.models
    ]


def _notes(models: list[ModelResult]) -> list[str]:
    """Settings that differ between the models: allowed, but the reader should know."""
    keys = sorted({key for model in models for key in model.settings} - {"adapter"})
    values = {key: [model.settings.get(key) for model in models] for key in keys}
    return [f"{key} differs: {some}" for key, some in values.items() if any(one != some[0] for one in some)]
