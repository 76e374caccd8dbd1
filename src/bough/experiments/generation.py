"""A generation on disk: all members, complete or not there at all.

    checkpoints/generation-00003/           the population as the generation begins
    checkpoints/generation-00003-trained/   after its updates, before selection
        NAME/                               one folder per member
        state.json                          what has been used up so far, losses, and the files of each member

A run that was killed resumes from the newest of these folders. Everything that leads from one
to the next is a function of its content and the seed, so the population is the same as without the kill.
"""

from __future__ import annotations

import logging
import math
import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from bough.chat.template import CallBuilder
from bough.data.reader import read
from bough.environments.base import identity
from bough.errors import InputError
from bough.evaluation.intervals import Interval, mean_interval, rate_interval
from bough.experiments.evolve_settings import EvolveConfig, is_valid, own_values, ranges
from bough.files import drafting, put_in_place, read_json, remove, write_json
from bough.ledger import Ledger, plural
from bough.training.method import Data, Example, Examples, Method

log = logging.getLogger(__name__)

NAME = re.compile(r"generation-(\d{5})(-trained)?")
STATE = "state.json"
# Folders of earlier generations that stay.
KEPT = 2


@dataclass(frozen=True)
class Used:
    """What a run has used up. `empty` updates, not among the `updates`, changed nothing.

    In an empty update a member had no group to learn from, or its loss was not finite.
    """

    updates: int = 0
    tokens: int = 0
    seconds: float = 0.0
    empty: int = 0

    def plus(self, *, updates: int = 0, tokens: int = 0, seconds: float = 0.0, empty: int = 0) -> Used:
        return Used(self.updates + updates, self.tokens + tokens, self.seconds + seconds, self.empty + empty)


@dataclass(frozen=True)
class Generation:
    """One of the folders. `losses` are the members' mean losses over the generation's updates, once it is trained."""

    path: Path
    number: int
    trained: bool
    used: Used = field(default_factory=Used)
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def members(self) -> list[str]:
        """The names, in the order in which members are trained."""
        return sorted(path.name for path in self.path.iterdir() if path.is_dir())

    def folder(self, name: str) -> Path:
        return self.path / name

    def individual(self, name: str) -> Individual:
        return Individual.read(self.folder(name))

    def individuals(self) -> dict[str, Individual]:
        return {name: self.individual(name) for name in self.members}

    @classmethod
    def read(cls, path: Path) -> Self:
        match = NAME.fullmatch(path.name)
        assert match is not None
        try:
            state = read_json(path / STATE)
            found = cls(path, int(match[1]), match[2] is not None, Used(**state["used"]), dict(state["losses"]))
            wanted = {f"{name}/{file}" for name, own in dict(state["files"]).items() for file in own}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path / STATE} is missing or damaged ({error}); delete that folder to resume from the one before"
            ) from None
        # Without this, a population without a member, or a member without its moments, would train on.
        if missing := sorted(name for name in wanted if not (path / name).exists()):
            raise InputError(f"{path} lacks {', '.join(missing)}; delete that folder to resume from the one before")
        return found

    @classmethod
    def newest(cls, folder: Path) -> Self | None:
        """The generation to resume from; None where there is none yet.

        What a killed run had not quite removed is removed.
        """
        _remove_doomed(folder)
        found = _all(folder)
        return cls.read(found[-1]) if found else None


@contextmanager
def writing(
    folder: Path, number: int, *, trained: bool, used: Used, losses: dict[str, float] | None = None
) -> Iterator[Path]:
    """A folder to write the members of a generation into; it gets its name when all are there.

    Older generations are removed after that.
    """
    final = folder / f"generation-{number:05}{'-trained' if trained else ''}"
    draft = final.with_name(f".{final.name}")
    with drafting(draft, final):
        folder.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        yield draft
        files = {one.name: sorted(file.name for file in one.iterdir()) for one in sorted(draft.iterdir())}
        write_json(draft / STATE, {"used": asdict(used), "losses": losses or {}, "files": files})
        put_in_place(draft, final)
    for old in _all(folder)[:-KEPT]:
        # A rename first: a removal that is cut short must not leave half a generation under its name.
        old.rename(old.with_name(f".{old.name}.old"))
    _remove_doomed(folder)


def _remove_doomed(folder: Path) -> None:
    for doomed in folder.glob(".generation-*.old"):
        remove(doomed)


def _all(folder: Path) -> list[Path]:
    """The generations of a run, oldest first."""
    return sorted(path for path in folder.glob("generation-*") if NAME.fullmatch(path.name))


# A member of a population as its folder describes it: where it comes from, its settings, how far it is trained.
#     NAME/member.json                 this description, and the optimizer's numbers
#     NAME/adapter_model.safetensors   the adapter, with adapter_config.json: loadable by anyone
#     NAME/optimizer.safetensors       the optimizer's moments

DESCRIPTION, OPTIMIZER = "member.json", "optimizer.safetensors"


@dataclass(frozen=True)
class Individual:
    """One member. `step` counts its updates, those of its ancestors included; `settings` are what mutations change.

    `mutation` says how it differs from its parent; members of the first generation have no parent.
    """

    name: str
    born: int = 0
    parent: str | None = None
    mutation: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    step: int = 0
    optimizer: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_json(folder / DESCRIPTION, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        try:
            return cls(**read_json(folder / DESCRIPTION))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{folder / DESCRIPTION} is missing or damaged: {error}") from None

    def described(self) -> dict[str, Any]:
        """What a lineage says of the member."""
        values = asdict(self)
        return {key: values[key] for key in ("name", "born", "parent", "mutation", "settings", "rank", "step")}


# What a member achieved: one value per task, the same tasks for all members; and what measures it.


@dataclass(frozen=True)
class Score:
    """A member's values by task, more being better. `lost` tasks have none: environment or engine failed there.

    With `rate`, all values are between 0 and 1. `tokens` were sampled to find them. Tasks of one family count as one:
    `families` names that of a task.
    """

    values: Mapping[str, float]
    rate: bool = True
    lost: int = 0
    tokens: int = 0
    families: Mapping[str, str] = field(default_factory=dict)

    def _means(self) -> list[float]:
        """One value per task or family: those of a family are not independent of each other."""
        found: dict[tuple[bool, str], list[float]] = {}
        for task, value in self.values.items():
            found.setdefault((task in self.families, self.families.get(task, task)), []).append(value)
        return [math.fsum(some) / len(some) for some in found.values()]

    @property
    def fitness(self) -> float:
        """The mean over tasks; minus infinity where nothing is known, or a value is not a number."""
        values = self._means()
        mean = math.fsum(values) / len(values) if values else -math.inf
        return -math.inf if math.isnan(mean) else mean

    def interval(self, level: float = 0.95) -> Interval | None:
        """Where the mean over all tasks of this kind may lie; for a rate, whatever the lost ones would have been."""
        values = self._means()
        if not values or not all(map(math.isfinite, values)):
            return None
        if not self.rate:
            return mean_interval(values, level)
        tasks = len(self.values) + self.lost
        low, high = (rate_interval([*values, *[end] * self.lost], tasks, level) for end in (0.0, 1.0))
        return low and high and replace(low, high=high.high)

    def to_json(self) -> dict[str, Any]:
        interval = self.interval()
        fitness = self.fitness if math.isfinite(self.fitness) else None
        bounds = None if interval is None else [interval.low, interval.high]
        return {"fitness": fitness, "interval": bounds, "tasks": len(self.values), "lost": self.lost}

    def __str__(self) -> str:
        interval, digits = self.interval(), ".1%" if self.rate else ".4g"
        between = f" ({interval.low:{digits}} to {interval.high:{digits}})" if interval else ""
        return f"{self.fitness:{digits}}{between}"


def on_common_tasks(scores: Mapping[str, Score]) -> dict[str, Score]:
    """The scores on the tasks that all members have a value for: means over different tasks cannot be compared.

    A member that lost more than half of the tasks that others have is left out: nothing is known of it.
    """
    most = max(len(score.values) for score in scores.values())
    known = {name: score for name, score in scores.items() if 2 * len(score.values) >= most}
    common = set.intersection(*(set(score.values) for score in known.values()))
    return {
        name: replace(score, values={task: value for task, value in score.values.items() if task in common})
        if name in known
        else replace(score, values={})
        for name, score in scores.items()
    }


# From the scores of a generation to the members of the next one: founders, selection, children.
# Every decision depends only on the scores and on a generator that the seed and the generation's number determine, so
# a run that resumes decides the same. Ties are broken by name.

Scores = Mapping[str, Score]
# Draws until the settings of a member are valid together; then it keeps those that it would have without a draw.
TRIES = 20


class Place(NamedTuple):
    """A place in the next generation: the member itself, if `lives`, or a child of it."""

    member: str
    lives: bool


def founders(config: EvolveConfig, rank: int) -> list[Individual]:
    """The members of the first generation, without their adapters."""
    given, rng = own_values(config), _generator(config, "founders")
    drawn = config.population.initial == "sampled"
    return [
        Individual(name=f"g0-{number}", settings=_sample(config, given, rng) if drawn and number else given, rank=rank)
        for number in range(config.population.size)
    ]


def _sample(config: EvolveConfig, given: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """All mutable settings drawn from their ranges."""
    for _ in range(TRIES):
        drawn = given | {name: span.draw(rng) for name, span in ranges(config).items()}
        if is_valid(config, drawn):
            return drawn
    return given


def ranked(scores: Scores) -> list[str]:
    """The members, fittest first."""
    return sorted(scores, key=lambda name: (-scores[name].fitness, name))


def select(config: EvolveConfig, scores: Scores, number: int) -> list[Place]:
    """The places of the generation after generation `number`.

    With halving these are the better half of the members. Otherwise every place goes to a child of
    the winner of a tournament among members drawn with replacement; with elitism the first place
    is that of the fittest member itself.
    """
    order, selection = ranked(scores), config.selection
    if config.population.halving:
        return [Place(name, lives=True) for name in order[: max(1, len(order) // 2)]]
    rng = _generator(config, f"selection {number}")
    elite = [Place(order[0], lives=True)] if selection.elitism else []
    drawn = (rng.choices(order, k=selection.tournament_size) for _ in range(len(order) - len(elite)))
    return [*elite, *(Place(min(some, key=order.index), lives=False) for some in drawn)]


def breed(config: EvolveConfig, generation: Generation, places: list[Place]) -> Generation:
    """Writes the next generation.

    Survivors are copied bit for bit. Children inherit their parent's adapter, its moments
    and its number of updates.
    """
    number, folder = generation.number + 1, generation.path.parent
    rng = _generator(config, f"mutation {generation.number}")
    with writing(folder, number, trained=False, used=generation.used) as draft:
        for at, (member, lives) in enumerate(places):
            name = member if lives else f"g{number}-{at}"
            shutil.copytree(generation.folder(member), draft / name)
            if not lives:
                parent = generation.individual(member)
                settings, mutation = mutated(config, parent.settings, rng)
                replace(
                    parent, name=name, born=number, parent=member, settings=settings, mutation=mutation
                ).write(draft / name)  # fmt: skip
    return Generation.read(folder / f"generation-{number:05}")


def mutated(
    config: EvolveConfig, settings: dict[str, Any], rng: random.Random
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A child's settings, and how they differ from those of its parent: in nothing, or in one of them.

    Each mutable setting is as likely as the others. With the probability of a resample it is drawn from
    its range, else it is multiplied by one of the two factors.
    """
    mutation, spans = config.mutation, ranges(config)
    weights = (mutation.no_mutation, mutation.hyper_parameter)
    [changes] = rng.choices((False, True), weights) if any(weights) else [False]
    for _ in range(TRIES if changes and spans else 0):
        name = rng.choice(list(spans))
        present = settings[name]
        if rng.random() < mutation.resample:
            value = spans[name].draw(rng, present)
        else:
            value = spans[name].perturb(present, rng, shrink=mutation.shrink_factor, grow=mutation.grow_factor)
        changed = {**settings, name: value}
        if is_valid(config, changed):
            return changed, {"kind": "hyper_parameter", "setting": name, "before": present, "after": value}
    return settings, {"kind": "no_mutation"}


def _generator(config: EvolveConfig, purpose: str) -> random.Random:
    return random.Random(f"{config.seed} {purpose}")  # noqa: S311  no secret


# The records of a run: what members learn from, what they are selected on, and what no member was selected on.


@dataclass(frozen=True)
class Records:
    """`selection` and `test` are empty where fitness is measured in an environment. `digest` covers all files.

    `tasks` are the identities of the tasks that training records name, where members play others.
    """

    train: Sequence[Example]
    selection: Sequence[Example]
    test: Sequence[Example]
    ledgers: list[Ledger]
    digest: str
    tasks: frozenset[str] = frozenset()


def read_records(
    config: EvolveConfig,
    method: Method[Any],
    builder: CallBuilder,
    data: Data | None = None,
    held_out: Data | None = None,
    test: Data | None = None,
) -> Records:
    """The records of the settings' files, or those given here.

    Without a held-out file, shares of the training file are held out. Without a test file, half of
    the held-out file is the test. Records that begin alike stay on one side of a split.
    """
    if config.method == "grpo":
        return Records([], [], [], [], "played")
    fitness, source = config.fitness, config.train_file if data is None else data
    assert source is not None and config.train_file is not None
    source = source if isinstance(source, str | Path) else list(source)  # it is read twice
    files = {
        "train_file": source,
        "eval_file": fitness.eval_file if held_out is None else held_out,
        "test_file": fitness.test_file if test is None else test,
    }
    found = {name: method.examples(file, builder) for name, file in files.items() if file is not None}
    known: dict[str, str] = {}
    for name, one in found.items():
        if (other := known.setdefault(str(one.digest), name)) != name:
            raise InputError(
                f"{name} has the same records as {other}; members are trained, selected and measured on different ones"
            )
    train = list(found["train_file"].examples)
    seen = set(map(_content, train))
    selection, final = (_unseen(found[name], name, seen) if name in found else [] for name in list(files)[1:])
    if not config.environment.name:
        share, rng, name = fitness.test_size, random.Random(config.seed), str(config.train_file)  # noqa: S311
        if not selection:
            train, selection = _split(train, share, rng, name)
            if not final:
                train, final = _split(train, share / (1 - share), rng, name)
        elif not final:
            selection, final = _split(selection, 0.5, rng, str(fitness.eval_file))
    tasks: set[str] = set()
    if config.environment.name:
        format = str(config.set.get("format", "auto"))
        records = read(source, format=format, on_error="skip") if isinstance(source, str | Path) else source
        tasks = {identity(one.task, by_content=config.tasks_by_content) for one in records}
    ledgers = [ledger for one in found.values() for ledger in (one.rows, one.calls)]
    digest = " ".join(str(one.digest) for one in found.values())
    return Records(train, selection, final, ledgers, digest, frozenset(tasks))


def _content(example: Example) -> int:
    return hash(tuple((tuple(call.prompt_ids), tuple(call.completion_ids)) for call in example.calls))


def _unseen(found: Examples[Any], file: str, seen: set[int]) -> list[Example]:
    """The records of a file that no file before it has, and from now on they are `seen`."""
    contents = [(_content(example), example) for example in found.examples]
    kept = [example for content, example in contents if content not in seen]
    if dropped := len(contents) - len(kept):
        log.warning("%s: %s left out, which members are trained or selected on.", file, plural(dropped, "record"))
    if not kept:
        raise InputError(f"{file} has no record that members are not trained or selected on")
    seen |= {content for content, _ in contents}
    return kept


def _split(
    examples: Sequence[Example], share: float, rng: random.Random, file: str
) -> tuple[list[Example], list[Example]]:
    """The examples without, and those of, a share of the clusters."""
    clusters = list(dict.fromkeys(example.cluster for example in examples))
    count = max(1, round(share * len(clusters)))
    if count >= len(clusters):
        raise InputError(
            f"{file} has too few different beginnings of records to hold some out; give eval_file and test_file"
        )
    chosen = set(rng.sample(clusters, count))
    apart = [example for example in examples if example.cluster in chosen]
    return [example for example in examples if example.cluster not in chosen], apart
