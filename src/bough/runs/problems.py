"""What is wrong with a recipe, found before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

from bough.config.base import Config
from bough.config.parts import flattened, leaves, parts
from bough.config.training import TrainingConfig
from bough.errors import InputError, did_you_mean
from bough.runs.kinds import KINDS
from bough.runs.recipe import Planned, Recipe, shared_settings, stage_config
from bough.runs.wiring import Artifacts, Wiring, evaluates_the_run

# What every stage gets from the recipe itself, and from the run.
OF_RECIPE = {"model", "seed"}
OF_RUN = {"report_to", "resume", *(kind.output for kind in KINDS.values())}


def problems_of(recipe: Recipe, stages: Sequence[Planned], wiring: Wiring) -> Iterator[str]:
    """A sentence for each problem, with its place in the recipe."""
    yield from _shared_problems(recipe)
    artifacts, adapters = Artifacts(recipe.model), dict[str, str]()
    for stage in stages:
        if stage.verb not in KINDS:
            yield f"{stage.place}: {stage.verb} is not a stage{did_you_mean(stage.verb, [*KINDS, 'repeat'])}"
            continue
        config = None
        try:
            config = wiring.config(stage, artifacts)
        except InputError as error:
            yield from (f"{stage.place}: {problem}" for problem in error.problems or [str(error)])
        yield from _all_weights_of_an_adapter(stage, config, adapters)
        yield from _gate_problems(stage, stages)
        yield from _output_problems(stage)
        wiring.add(stage, artifacts)
        if config and KINDS[stage.verb].writes == "model" and not _trains_all_weights(config):
            adapters[artifacts.model] = stage.folder


def hint(recipe: Recipe, problems: Sequence[str]) -> str:
    """How a recipe without an environment is given one: it cannot name a user's code itself."""
    if "environment" in recipe.defaults or not any("environment" in problem for problem in problems):
        return ""
    return "Give the environment with --set defaults.environment=NAME, your own as path/to/file.py:Class."


def _shared_problems(recipe: Recipe) -> Iterator[str]:
    """Settings under `defaults` that no command has, or that would be ignored because the run sets them."""
    configs = [stage_config(verb) for verb in KINDS]
    known = {name for config in configs for name in (*leaves(config), *parts(config))}
    for key in recipe.defaults:
        if not any(config.field_name(key) in known for config in configs):
            yield f"defaults.{key}: no stage has such a setting{did_you_mean(key, sorted(known))}"
    for key in shared_settings(recipe):
        if key in OF_RECIPE:
            yield f"defaults.{key} would be ignored: give `{key}` at the top of the recipe, or --set {key}=…"
        elif key in OF_RUN:
            yield f"defaults.{key} would be ignored: the run sets it for each stage"


def _gate_problems(stage: Planned, stages: Sequence[Planned]) -> Iterator[str]:
    if stage.gate is None:
        return
    if not evaluates_the_run(stage):
        yield f"{stage.place}.gate: only an evaluation of the run's own model in the environment can have a gate"
    against = stage.gate.against
    evaluations = [one.name for one in stages[: stage.number - 1] if evaluates_the_run(one)]
    if against is not None and against not in evaluations:
        yield f"{stage.place}.gate: there is no earlier evaluation {against!r}{did_you_mean(against, evaluations)}"


def _all_weights_of_an_adapter(stage: Planned, config: Config | None, adapters: Mapping[str, str]) -> Iterator[str]:
    """`adapters`: the stages that train one, by its path."""
    if _trains_all_weights(config) and config.model in adapters:
        yield (
            f"{stage.place}: use_lora is false, but the model is the adapter of {adapters[config.model]}; "
            "train an adapter here as well, or all weights there"
        )


def _trains_all_weights(config: Config | None) -> TypeGuard[TrainingConfig]:
    return isinstance(config, TrainingConfig) and not config.lora.enabled


def _output_problems(stage: Planned) -> Iterator[str]:
    """A stage writes into its own folder: any other does not belong to the run and could be overwritten."""
    if KINDS[stage.verb].output in flattened(stage_config(stage.verb), stage.settings):
        yield f"{stage.place}: {KINDS[stage.verb].output} is set by the run, which gives each stage a folder; remove it"
