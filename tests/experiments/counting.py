"""A small sweep without a neural model: the expert counts to its goal if it has enough turns."""

from pathlib import Path
from typing import Any

from bough.experiments.sweep import Sweep, SweepConfig

ENVIRONMENT = "defaults.environment=tests.environments.worlds:Counting"
# Goals are 2, 3 and 4 in turn: with 2, 3 and 4 turns one, two and three thirds of the tasks are solved.
RECIPE = """\
name: counting
model: expert
stages:
  - eval: {name: before, tasks: 6, max_turns: 1}
  - collect: {name: played, tasks: 2, seed: 5}
  - demos: {longest: 2}
  - eval: {name: after, tasks: 6}
"""


def configured(folder: Path, *vary: str, seeds: int = 2, recipe: str = RECIPE, **more: Any) -> Sweep:
    """The sweep of the recipe in `folder`, with the varied settings as on the command line."""
    file = folder / "counting.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(recipe)
    given = {"output": folder / "sweep", "set": [ENVIRONMENT], "vary": list(vary), "seeds": seeds} | more
    return Sweep.configured(SweepConfig(recipe=str(file), **given))
