"""The evolve stage of a recipe as settings of the command."""

from __future__ import annotations

from typing import Any

from bough.config.base import Config
from bough.config.parts import flattened, leaves, parts
from bough.errors import InputError
from bough.runs.recipe import find_recipe, load_recipe, plan, shared_settings

VERB = "evolve"


def stage_settings(config: type[Config], name: str) -> dict[str, Any]:
    """The settings of the only evolve stage of a recipe, with the recipe's model, seed and defaults."""
    recipe = load_recipe(find_recipe(name), {})
    stages = [stage for stage in plan(recipe) if stage.verb == VERB]
    if len(stages) != 1:
        count = f"{len(stages)} stages" if stages else "no stage"
        raise InputError(f"the recipe {name} has {count} `evolve`; `bough run` runs whole recipes")
    known = (*leaves(config), *parts(config))
    shared = {key: value for key, value in shared_settings(recipe).items() if key in known}
    return flattened(config, {"model": recipe.model, "seed": recipe.seed, **shared, **stages[0].settings})
