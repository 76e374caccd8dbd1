"""How the stages of a recipe are connected: the settings of each, filled in from what earlier stages made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bough.commands import table
from bough.config.base import Config, flattened, leaves, parts
from bough.config.groups import ClusterConfig
from bough.config.run_folder import RunDir
from bough.config.training import TrainingConfig
from bough.errors import InputError, did_you_mean
from bough.experiments.recipe import FREE, Planned, Recipe, shared_settings, stage_config
from bough.experiments.record import content, fingerprint
from bough.training.trackers import Name

# The folder of the trained weights in that of a training stage.
FINAL = "final"
# Settings that name inputs, whatever the command.
INPUTS = ("model", "adapter", "task_file", "eval_file", "test_file", "test_task_file")


@dataclass
class Artifacts:
    """What the stages so far have made: the newest of each kind, all of each kind, and all by the names of stages."""

    model: str
    newest: dict[str, Path] = field(default_factory=dict)
    all: dict[str, list[Path]] = field(default_factory=dict)
    by_name: dict[str, Path] = field(default_factory=dict)
    # Evaluations with the model they were made with, for gates; `accepted` is that of the model in use.
    evaluated: dict[str, tuple[Path, str]] = field(default_factory=dict)
    accepted: tuple[Path, str] | None = None

    def model_named(self, name: Any) -> Any:
        """The model that the stage of this name has trained, or `name` itself if there is no such stage."""
        if isinstance(name, list):
            return [self.model_named(one) for one in name]
        path = self.by_name.get(name) if isinstance(name, str) else None
        return str(path) if path is not None and path.name == FINAL else name


@dataclass(frozen=True)
class Wiring:
    """Connects the stages of one run."""

    recipe: Recipe
    folder: Path
    report_to: Sequence[Name] = ()
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def config(self, stage: Planned, artifacts: Artifacts) -> Config:
        """The settings of a stage: its own first, then the recipe's and what earlier stages have made."""
        kind, folder = table.stages()[stage.verb], self.folder / stage.folder
        config = stage_config(stage.verb)
        own = flattened(config, stage.settings)
        if kind.writes == "evaluation" and "eval_file" in own:  # measures a file, needs no environment
            return config(**{"model": artifacts.model, kind.output: folder / kind.artefact} | own)
        values: dict[str, Any] = flattened(config, shared_settings(self.recipe))
        # Every round plays other tasks, but all rounds are evaluated on the same tasks.
        later = 0 if kind.writes == "evaluation" else stage.round - 1
        values |= {"model": artifacts.model, "seed": self.recipe.seed + later}
        values |= {kind.output: folder / kind.artefact if kind.one_file else folder}
        if kind.resumes:
            values["resume"] = RunDir(folder).used
        values["report_to"] = list(self.report_to)
        for name, leaf in leaves(ClusterConfig).items():
            if leaf.path[0] in self.cluster.model_fields_set:
                values[name] = leaf.of(self.cluster)
        values = {key: value for key, value in values.items() if key in leaves(config) or key in parts(config)} | own
        if (reads := kind.input(own)) and kind.file not in own:
            sources = self._sources(stage, reads, artifacts)
            if sources[1:]:
                values["also"] = sources[1:]
            if sources and not (kind.or_plays and "environment" in own):
                values[kind.file] = sources[0]
                for name in ("environment", "options", *leaves(ClusterConfig).keys() - own) if kind.or_plays else ():
                    values.pop(name, None)
        for name in filter(None, ("model", kind.labels)):
            values |= {name: artifacts.model_named(values[name])} if name in values else {}
        if kind.adds and kind.adds not in own and kind.writes in artifacts.all:
            values[kind.adds] = list(artifacts.all[kind.writes])
        return config(**values)

    def add(self, stage: Planned, artifacts: Artifacts) -> None:
        """Makes the output of a stage available to later ones."""
        kind = table.stages()[stage.verb]
        path = self.folder / stage.folder / kind.artefact
        artifacts.by_name[stage.name] = artifacts.newest[kind.writes] = path
        artifacts.all.setdefault(kind.writes, []).append(path)
        if kind.writes == "model":
            artifacts.model = str(path)

    def _sources(self, stage: Planned, reads: str, artifacts: Artifacts) -> list[Path]:
        """The files that the stage reads: those of the stages it names, or the newest of the kind `reads`."""
        for name in stage.sources:
            if name not in artifacts.by_name:
                raise InputError(f"from: there is no earlier stage {name!r}{did_you_mean(name, artifacts.by_name)}")
        if stage.sources:
            return [artifacts.by_name[name] for name in stage.sources]
        return [artifacts.newest[reads]] if reads in artifacts.newest else []


def evaluates_the_run(stage: Planned) -> bool:
    """Whether the stage evaluates the run's own model in the environment, not another model or a file."""
    if stage.verb not in table.stages() or table.stages()[stage.verb].writes != "evaluation":
        return False
    return not flattened(stage_config(stage.verb), stage.settings).keys() & {"model", "eval_file"}


@dataclass(frozen=True)
class Stamp:
    """What determines the result of a stage: its settings and its inputs, and the fingerprint of both."""

    fingerprint: str
    settings: dict[str, Any]
    inputs: dict[str, str]


def stamped(verb: str, config: Config, digest: Callable[[Path], str] = content) -> Stamp:
    """The stamp of a stage with these settings; `digest` gives the content of an input."""
    kind, values, inputs = table.stages()[verb], config.flat_dump(), dict[str, str]()
    for name in filter(None, (*INPUTS, kind.file, "also", kind.adds, kind.labels)):
        value = values.get(name)
        if value:
            every = value if isinstance(value, list) else [value]
            inputs[name] = ",".join(digest(Path(str(one))) for one in every)
    # The content of an input counts, not its path.
    settings = {key: value for key, value in values.items() if key not in FREE and key not in inputs}
    return Stamp(fingerprint(verb, settings, inputs), settings, inputs)


# What is wrong with a recipe, found before anything runs.

# What every stage gets from the recipe itself, and from the run.
OF_RECIPE = {"model", "seed"}
OF_RUN = {"report_to", "resume", "output", "output_dir"}


def problems_of(recipe: Recipe, stages: Sequence[Planned], wiring: Wiring) -> Iterator[str]:
    """A sentence for each problem, with its place in the recipe."""
    configs = [stage_config(verb) for verb in table.stages()]
    known = {name for config in configs for name in (*leaves(config), *parts(config))}
    for key in recipe.defaults:
        if not any(config.field_name(key) in known for config in configs):
            yield f"defaults.{key}: no stage has such a setting{did_you_mean(key, sorted(known))}"
    for key in shared_settings(recipe):
        if key in OF_RECIPE:
            yield f"defaults.{key} would be ignored: give `{key}` at the top of the recipe, or --set {key}=…"
        elif key in OF_RUN:
            yield f"defaults.{key} would be ignored: the run sets it for each stage"
    artifacts, adapters = Artifacts(recipe.model), dict[str, str]()  # the stages that train an adapter, by its path
    for stage in stages:
        kind = table.stages().get(stage.verb)
        if kind is None:
            yield f"{stage.place}: {stage.verb} is not a stage{did_you_mean(stage.verb, [*table.stages(), 'repeat'])}"
            continue
        config: Config | None = None
        try:
            config = wiring.config(stage, artifacts)
        except InputError as error:
            yield from (f"{stage.place}: {problem}" for problem in error.problems or [str(error)])
        whole = isinstance(config, TrainingConfig) and not config.lora.enabled
        if isinstance(config, TrainingConfig) and whole and config.model in adapters:
            yield (
                f"{stage.place}: use_lora is false, but the model is the adapter of {adapters[config.model]}; "
                "train an adapter here as well, or all weights there"
            )
        if stage.gate is not None:
            against = stage.gate.against
            evaluations = [one.name for one in stages[: stage.number - 1] if evaluates_the_run(one)]
            if not evaluates_the_run(stage):
                yield (
                    f"{stage.place}.gate: only an evaluation of the run's own model in the environment can have a gate"
                )
            if against is not None and against not in evaluations:
                hint = did_you_mean(against, evaluations)
                yield f"{stage.place}.gate: there is no earlier evaluation {against!r}{hint}"
        if kind.output in flattened(stage_config(stage.verb), stage.settings):
            # Any other folder than its own does not belong to the run and could be overwritten.
            yield f"{stage.place}: {kind.output} is set by the run, which gives each stage a folder; remove it"
        wiring.add(stage, artifacts)
        if config and kind.writes == "model" and not whole:
            adapters[artifacts.model] = stage.folder


def hint(recipe: Recipe, problems: Sequence[str]) -> str:
    """How a recipe without an environment is given one: it cannot name a user's code itself."""
    if "environment" in recipe.defaults or not any("environment" in problem for problem in problems):
        return ""
    return "Give the environment with --set defaults.environment=NAME, your own as path/to/file.py:Class."
