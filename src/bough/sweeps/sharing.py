"""Which stages of a sweep's runs are the same, known before anything runs.

A stage is stamped as in a run, but with the stamp of the stage that makes an input in place of
the input's content. Two stages with one stamp have one result. After a gate the model may be
either of two, so it gets a stamp of its own: a gate that rejects both of two models makes
more stages equal than is known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bough.digest import text_digest
from bough.runs.recipe import Planned
from bough.runs.record import content
from bough.runs.run import Run
from bough.runs.wiring import Artifacts, evaluates_the_run, stamped


@dataclass(frozen=True)
class StampedStage:
    """A stage of a run, and what determines its result."""

    stage: Planned
    stamp: str


def stamps(runs: Iterable[Run]) -> list[list[StampedStage]]:
    """The stages of each run with their stamps."""
    outside: dict[Path, str] = {}  # inputs from outside the sweep, which many runs read
    return [_stamps(run, outside) for run in runs]


def _stamps(run: Run, outside: dict[Path, str]) -> list[StampedStage]:
    artifacts, made, found = Artifacts(run.recipe.model), dict[str, str](), []

    def digest(path: Path) -> str:
        if str(path) in made:
            return made[str(path)]
        if path not in outside:
            outside[path] = content(path)
        return outside[path]

    for stage in run.stages:
        stamp = stamped(stage.verb, run.wiring.config(stage, artifacts), digest).fingerprint
        found.append(StampedStage(stage, stamp))
        if stage.gate is not None and evaluates_the_run(stage):
            model, gate = artifacts.model, stage.gate.model_dump_json()
            made[model] = text_digest(f"{digest(Path(model))} {stamp} {gate}", size=8)
        run.wiring.add(stage, artifacts)
        made[str(artifacts.by_name[stage.name])] = stamp
    return found
