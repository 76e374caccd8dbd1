"""`bough.run`: the stages of a recipe, from a model and an environment to a better agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bough.api.inputs import StrPath
from bough.api.settings import make_config, settings_of
from bough.config.run import RunConfig
from bough.plural import plural
from bough.runs.run import Run
from bough.runs.summary import SummaryRow, summary
from bough.terminal import console


class RecipeRun:
    """A finished run of a recipe: its `folder`, and a row for each of its evaluations."""

    def __init__(self, name: str, folder: Path, evaluations: list[SummaryRow]) -> None:
        self.name, self.folder, self.evaluations = name, folder, evaluations

    def __repr__(self) -> str:
        rows = [
            f"{row.stage}: success {row.success:.1%} ({row.low:.1%} to {row.high:.1%}), "
            f"{plural(row.episodes, 'episode')}"
            if row.success is not None
            else f"{row.stage}: success unknown"
            for row in self.evaluations
        ]
        return "\n".join([f"{self.name} in {self.folder}", *rows])


@settings_of(RunConfig)
def run(recipe: StrPath, *, output_dir: StrPath | None = None, **settings: Any) -> RecipeRun:
    """Run the stages of a recipe, a YAML file or the name of a shipped one.

    Stages that have not changed are skipped; a run that was stopped resumes. `output_dir`
    is the run's folder (default: runs/ and the recipe's name).
    """
    target = None if output_dir is None else Path(output_dir)
    config = make_config(RunConfig, "run", settings, recipe=str(recipe), output_dir=target)
    playing = Run.configured(config)
    playing.play(console.announce)
    return RecipeRun(playing.recipe.name, playing.folder, summary(playing.folder, playing.recipe))
