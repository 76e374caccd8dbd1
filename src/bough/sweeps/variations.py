"""The runs of a sweep: every combination of the varied settings with every seed, each as a recipe of its own."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from bough.config.yaml_file import write_value
from bough.digest import text_digest
from bough.errors import InputError
from bough.runs.recipe import Recipe, load_recipe

# More runs than this take months; a command line that asks for them is a mistake.
MAX_RUNS = 1000
MAX_NAME = 80


@dataclass(frozen=True)
class Variation:
    """One run: the values of the varied settings, the number of its seed (from 0), and the recipe with both."""

    values: dict[str, JsonValue]
    seed: int
    recipe: Recipe

    @property
    def label(self) -> str:
        return f"{label(self.values)}, seed {self.seed}"

    @property
    def name(self) -> str:
        """The name of its folder: it depends on nothing but its own values and seed, so that others can be added."""
        written = label(self.values)
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", written).strip("-.")
        simple = all(isinstance(value, int | float) for value in self.values.values())
        if not simple or len(plain) > MAX_NAME:  # two values may look alike without their punctuation
            plain = f"{plain[:MAX_NAME]}-{text_digest(written, size=4)}"
        return f"{plain}-seed-{self.seed}"


def label(values: Mapping[str, JsonValue]) -> str:
    """The values of the varied settings as text."""
    return ", ".join(f"{key}={write_value(value)}" for key, value in values.items())


def variations(
    recipe: Path, vary: Mapping[str, Sequence[JsonValue]], seeds: int, changes: Mapping[str, JsonValue]
) -> list[Variation]:
    """Every combination in order, each with all seeds. InputError lists what cannot be varied."""
    if problems := list(_problems(vary, seeds, changes)):
        raise InputError("--vary cannot be applied:", problems)
    found = []
    for values in (dict(zip(vary, chosen, strict=True)) for chosen in itertools.product(*vary.values())):
        try:
            base = load_recipe(recipe, {**changes, **values})
        except InputError as error:
            raise InputError(error.message.replace("--set", "--vary or --set"), error.problems) from None
        found += [Variation(values, seed, shifted(base, seed)) for seed in range(seeds)]
    return found


def shifted(recipe: Recipe, by: int) -> Recipe:
    """The recipe with `by` added to its seed and to the seeds that stages set themselves.

    All randomness of the run changes: tasks, demonstrations, training and evaluation.
    """
    stages = copy.deepcopy(recipe.stages)
    for settings in _with_seeds(stages):
        settings["seed"] += by
    return recipe.model_copy(update={"seed": recipe.seed + by, "stages": stages})


def _with_seeds(stages: Any) -> Iterator[dict[str, Any]]:
    """The settings of every stage that sets a seed."""
    for stage in stages if isinstance(stages, list) else ():
        for verb, settings in stage.items() if isinstance(stage, dict) else ():
            if isinstance(settings, dict) and verb == "repeat":
                yield from _with_seeds(settings.get("stages"))
            elif isinstance(settings, dict) and type(settings.get("seed")) is int:
                yield settings


def _problems(vary: Mapping[str, Sequence[JsonValue]], seeds: int, changes: Mapping[str, JsonValue]) -> Iterator[str]:
    count = seeds
    for key, values in vary.items():
        count *= len(values)
        if key.rpartition(".")[2] == "seed":
            yield f"{key}: seeds are varied with --seeds N"
        elif "." not in key and key != "model":
            yield f"{key}: only model, defaults.SETTING and STAGE.SETTING can be varied, such as dpo.beta"
        if key in changes:
            yield f"{key} is also given with --set; give it once"
        if not values:
            yield f"{key} has no values; give at least one"
        for value in _twice(values):
            yield f"{key} has the value {write_value(value)} twice"
    if count > MAX_RUNS:
        yield f"it asks for {count:,} runs; at most {MAX_RUNS:,} are possible"


def _twice(values: Sequence[JsonValue]) -> list[JsonValue]:
    return [
        value
        for at, value in enumerate(values)
        if any((type(value) is bool) == (type(one) is bool) and value == one for one in values[:at])
    ]
