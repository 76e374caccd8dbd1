"""A recipe: a model, an environment and stages. A stage is a command and its settings, written as for the command.

    model: smollm2
    defaults: {environment: household, max_turns: 20}
    stages:
      - collect: {model: expert, tasks: 40}
      - demos:
      - sft: {max_steps: 100}
      - repeat: {rounds: 2, stages: [{collect: {attempts: 4}}, {pairs: }, {dpo: }]}
      - eval: {episodes: 100, split: unseen}

Settings that a stage leaves out come from the recipe and from earlier stages: the newest
model, the newest data of the kind it reads (or that of the stages it names, `from: own-play`
or `from: [own-play, demonstrations]`), the environment, a folder of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, JsonValue, field_validator

from bough.commands import table
from bough.config.base import RULE, Config, code_in, code_in_change, flattened, is_name, leaves, place_of, translate
from bough.config.groups import ClusterConfig
from bough.config.yaml_file import YamlFile
from bough.errors import InputError, did_you_mean
from bough.evaluation.gate import Decision, gate
from bough.evaluation.results import Results

SHIPPED = Path(__file__).parents[1] / "recipes"
FILE_NAME = "recipe.yaml"
# A run of this many stages takes weeks; a file with more is a mistake or an attack.
MAX_STAGES = 1000


class Recipe(Config):
    """The model, the shared settings and the stages of a run."""

    name: str = Field("run", description="name of the run folder")
    about: str = Field("", description="a description, for readers")
    model: str = Field("smollm2", description="the model to start from")
    seed: int = Field(0, ge=0, description="random seed; a repeated round adds its number")
    defaults: dict[str, JsonValue] = Field({}, description="settings for every stage that has them")
    stages: list[dict[str, JsonValue]] = Field(min_length=1, description="commands with their settings, in order")

    @field_validator("name")
    @classmethod
    def _is_a_folders_name(cls, name: str) -> str:
        if not is_name(name):
            raise ValueError(f"{RULE}; change it with --set name=NAME")
        return name


@dataclass(frozen=True)
class Planned:
    """A stage of a recipe, with repeated rounds unrolled. `place` is its place in the file, for messages."""

    number: int
    verb: str
    name: str
    round: int
    settings: dict[str, Any] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    gate: Gate | None = None
    place: str = ""

    @property
    def folder(self) -> str:
        return f"{self.number:02}-{self.name}" + (f"-round-{self.round}" if self.round > 1 else "")


def stage_config(verb: str) -> type[Config]:
    """The class of the settings of a command that can be a stage."""
    return table.command(verb).config


def shared_settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe's `defaults` by their flat names: a command may have a setting, but not the part it is in."""
    shared: dict[str, Any] = dict(recipe.defaults)
    for verb in table.stages():
        shared = flattened(stage_config(verb), shared)
    return shared


def find_recipe(name: str) -> Path:
    """A file, or one of the shipped recipes by its name."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    shipped = SHIPPED / f"{name}.yaml"
    if not shipped.exists():
        raise InputError(f"there is no recipe {name!r}{did_you_mean(name, shipped_recipes())}; or give a .yaml file")
    return shipped


def shipped_recipes() -> list[str]:
    """The names of the recipes shipped with Bough."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml") if "stages" in YamlFile.read(path).values)


def load_recipe(path: Path, changes: Mapping[str, JsonValue]) -> Recipe:
    """The recipe in a file with `changes`: `model=…`, `defaults.KEY=…`, `STAGE.KEY=…` by a stage's command or name."""
    document = YamlFile.read(path)
    if document.problems:
        raise InputError(f"{path} is not a valid recipe:", document.problems)
    values = dict(document.values)
    values.setdefault("name", path.stem)
    problems = [problem for key, value in changes.items() if (problem := _change(values, key, value))]
    if problems:
        raise InputError("--set cannot be applied:", problems)
    given = {name for key, value in changes.items() for name in code_in_change(key, value)}
    defaults, stages = values.get("defaults"), list(all_stages(values.get("stages")))
    places = [("defaults", defaults)] if isinstance(defaults, dict) else []
    for place, settings in [*places, *((settings.get("name", verb), settings) for verb, settings in stages)]:
        for key, setting, name in code_in(settings):
            if name not in given:
                shown = f"{{{name}: 1}}" if setting == "rewards" else name
                problems.append(f"{place}.{key} is {name!r}; --set {shlex.quote(f'{place}.{key}={shown}')}")
    if problems:
        raise InputError(f"{path} names code, which a file may not do; if you trust it, name it with --set:", problems)
    for verb, settings in stages:  # other tools' keys in the training stages
        if verb in table.stages() and table.stages()[verb].writes == "model":
            translated, foreign = translate(settings, leaves(stage_config(verb)))
            settings.clear()
            settings |= translated
            problems += [f"{settings.get('name', verb)}: {problem}" for problem in foreign.values()]
    if problems:
        raise InputError(f"{path} is not a valid recipe:", problems)
    try:
        return Recipe(**values)
    except InputError as error:
        raise InputError(f"{path} is not a valid recipe:", error.problems) from None


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a run folder was made with."""
    file = folder / FILE_NAME
    if not file.is_file():
        raise InputError(f"{folder} is not a run folder: there is no {FILE_NAME} in it")
    try:
        return Recipe(**YamlFile.read(file).values)
    except InputError as error:
        raise InputError(f"{file} is not a valid recipe:", error.problems or [str(error)]) from None


def plan(recipe: Recipe) -> list[Planned]:
    """The stages in the order in which they run. Raises InputError that lists every malformed stage."""
    problems: dict[str, None] = {}  # every round has the same ones
    found: list[Planned] = []
    for verb, own, place, round in _unrolled(recipe.stages, "stages", 1, problems, count(1)):
        name, sources, given = str(own.pop("name", verb)), own.pop("from", []), own.pop("gate", None)
        if not is_name(name):
            problems[f"{place}: its name is {name!r:.120}; {RULE}"] = None
        gate = None
        try:
            if isinstance(given, dict):
                gate = Gate(**given)
            elif given is not None:
                problems[f"{place}.gate: settings are a mapping, such as {{alpha: 0.05}}, not {given!r}"] = None
        except InputError as error:
            problems |= {f"{place}.gate: {problem}": None for problem in error.problems or [str(error)]}
        names = tuple(map(str, sources if isinstance(sources, list) else [sources]))
        found.append(Planned(len(found) + 1, verb, name, round, own, names, gate, place))
    if problems:
        raise InputError("the recipe's stages have problems:", problems)
    return found


def _unrolled(
    stages: list[Any], place: str, round: int, problems: dict[str, None], visited: Iterator[int]
) -> Iterator[tuple[str, dict[str, Any], str, int]]:
    """Every stage with its settings, its place and its round; what is not well-formed is added to `problems`."""
    for index, stage in enumerate(stages):
        if next(visited) > MAX_STAGES:
            raise InputError(f"the recipe has more than {MAX_STAGES} stages with its rounds unrolled")
        if not isinstance(stage, dict) or len(stage) != 1:
            said = "a stage is one command with its settings, such as `- sft: {max_steps: 100}`"
            problems[f"{place}[{index}]: {said}"] = None
            continue
        [(verb, settings)] = stage.items()
        here, settings = f"{place}[{index}].{verb}", settings or {}
        if not isinstance(settings, dict):
            problems[f"{here}: settings are a mapping, not {settings!r:.100}"] = None
        elif verb != "repeat":
            yield verb, dict(settings), here, round
        else:
            inner, rounds = settings.get("stages"), settings.get("rounds", 1)
            known = set(settings) <= {"rounds", "stages"} and type(rounds) is int and rounds >= 1
            if not known or not isinstance(inner, list) or not inner:
                problems[f"{here} takes rounds (a number from 1) and stages (a list with at least one stage)"] = None
                continue
            for number in range(1, rounds + 1):
                # A nested round has a number of its own, so that it plays other tasks than all other rounds.
                yield from _unrolled(inner, here, (round - 1) * rounds + number, problems, visited)


def _change(values: dict[str, Any], key: str, value: JsonValue) -> str | None:
    """Applies one change; returns a problem if it cannot be applied."""
    first, _, rest = key.partition(".")
    if not rest:
        if first == "stages":
            return "stages: give one setting of one stage, as STAGE.KEY=VALUE"
        values[first] = value
        return None
    if first == "defaults":
        defaults = values.get("defaults")
        for config in map(stage_config, table.stages()):
            rest = place_of(config, defaults, rest) if isinstance(defaults, dict) else rest
        return _set(values, f"defaults.{rest}", value)
    stages = list(all_stages(values.get("stages")))
    found = [(verb, settings) for verb, settings in stages if first in (verb, settings.get("name"))]
    if not found:
        names = {str(word) for verb, settings in stages for word in (verb, settings.get("name", verb))}
        return f"{key}: there is no stage {first!r}{did_you_mean(first, sorted(names | {'defaults'}))}"
    known = table.stages()
    places = [place_of(stage_config(verb), settings, rest) if verb in known else rest for verb, settings in found]
    problems = [_set(settings, where, value) for (_, settings), where in zip(found, places, strict=True)]
    return next((f"{first}.{problem}" for problem in problems if problem), None)


def all_stages(stages: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every well-formed stage, with its settings; `plan` reports the others."""
    for stage in stages if isinstance(stages, list) else ():
        for verb in stage if isinstance(stage, dict) else ():
            settings = stage[verb] = {} if stage[verb] is None else stage[verb]
            if not isinstance(settings, dict):
                continue
            if verb == "repeat":
                yield from all_stages(settings.get("stages"))
            else:
                yield verb, settings


def _set(target: dict[str, Any], key: str, value: JsonValue) -> str | None:
    *path, last = key.split(".")
    for at, name in enumerate(path, 1):
        if target.get(name) is None:
            target[name] = {}
        target = target[name]
        if not isinstance(target, dict):
            return f"{key}: {'.'.join(path[:at])} is {target!r}, not a mapping"
    target[last] = value
    return None


def to_yaml(recipe: Recipe) -> str:
    """The recipe as a file."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


# Settings that do not change the result of a stage.
FREE = {
    *("output", "output_dir", "overwrite", "resume", "concurrency", "retries", "report_to", "wandb_project"),
    *leaves(ClusterConfig),
    "learners",
}


# The settings file of a run folder, `config.yaml`: which command wrote it, and the settings by their flat names.

NAME = "config.yaml"


def read_settings(file: Path) -> tuple[str | None, dict[str, Any]]:
    """The command, None if it is unknown, and the settings by their flat names."""
    values = dict(YamlFile.read(file).values)
    if not (name := values.pop("command", None)):
        # A file of an earlier version, which named no command but wrote all settings: the command that has them.
        apart: dict[str, int] = {}
        for one in table.stages():
            config = table.command(one).config
            found, known = flattened(config, values).keys(), leaves(config).keys()
            if "model" in found and len(found & known) > len(known) / 2:
                apart[one] = len(found ^ known)
        name = min(apart, key=lambda one: apart[one], default=None)
    return (name, flattened(table.command(name).config, values)) if name in table.names() else (None, values)


# The gate after an evaluation: keeps the better of two models.


class Gate(Config):
    """Requires a model to be significantly better than an earlier one; otherwise the earlier one is kept."""

    alpha: float = Field(
        0.05, gt=0, lt=1, description="significance level: the probability of promoting a model that is not better"
    )
    against: str | None = Field(
        None, description="the earlier evaluation to compare with (default: that of the model promoted last)"
    )
    by_type: bool = Field(
        False, description="also refuse a model that is significantly worse on any type of task (Holm's correction)"
    )


def judge(before: Path, after: Path, given: Gate) -> Decision:
    """Whether the model evaluated in `after` is significantly better than the one in `before`."""
    old, new = Results.read(before), Results.read(after)
    early = old.stop_width is not None or new.stop_width is not None
    return gate(old.models[-1], new.models[-1], alpha=given.alpha, sequential=early, by_type=given.by_type)
