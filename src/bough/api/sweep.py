"""`bough.sweep`: a recipe with every combination of some settings and several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from bough.api.inputs import StrPath
from bough.api.settings import make_config, settings_of
from bough.config.sweep import SweepConfig
from bough.plural import plural
from bough.sweeps.sweep import Sweep
from bough.sweeps.table import SweepRow
from bough.sweeps.variations import label
from bough.terminal import console


class SweepResult:
    """A sweep: its `folder`, a row per combination and evaluation, and why runs `failed`, by their names."""

    def __init__(self, folder: Path, rows: list[SweepRow], failed: dict[str, str]) -> None:
        self.folder, self.rows, self.failed = folder, rows, failed

    def __repr__(self) -> str:
        rows = [
            f"{label(row.values) or 'all'}: {row.evaluation} {row.mean} ({row.interval}), "
            f"{plural(len(row.rates), 'seed')}"
            for row in self.rows
        ]
        failed = [f"{name} failed: {why}" for name, why in self.failed.items()]
        return "\n".join([f"sweep in {self.folder}", *rows, *failed])


@settings_of(SweepConfig)
def sweep(
    recipe: StrPath, vary: Mapping[str, Sequence[JsonValue]], *, output: StrPath | None = None, **settings: Any
) -> SweepResult:
    """Run a recipe for every combination of settings and every seed, and report success across seeds.

    `vary` has the values of each setting: `{"dpo.beta": [0.01, 0.1, 0.5]}`. Stages that several
    runs have in common are computed once; a sweep that was stopped resumes. A run that fails does
    not stop the others: see `failed`. With `jobs` above 1 the environment must be given by name.
    """
    target = None if output is None else Path(output)
    lists = {key: list(values) for key, values in vary.items()}
    config = make_config(SweepConfig, "sweep", settings, recipe=str(recipe), vary=lists, output=target)
    playing = Sweep.configured(config)
    rows = playing.play(console.announce)
    return SweepResult(playing.folder, rows, playing.failed)
