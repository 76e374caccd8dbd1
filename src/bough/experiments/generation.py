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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from bough.chat.builder import CallBuilder
from bough.data.reader import read
from bough.environments.tasks import identity
from bough.errors import InputError
from bough.evaluation.intervals import Interval, mean_interval, rate_interval
from bough.experiments.evolve_settings import EvolveConfig
from bough.files import drafting, put_in_place, read_json, remove, write_json
from bough.ledger import Ledger, plural
from bough.training.method import Data, Example, Examples, Method

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
            files = {name: set(names) for name, names in state["files"].items()}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path / STATE} is missing or damaged ({error}); delete that folder to resume from the one before"
            ) from None
        # Without this, a population without a member, or a member without its moments, would train on.
        if missing := sorted(f"{name}/{file}" for name, own in files.items() for file in own - found._files(name)):
            raise InputError(f"{path} lacks {', '.join(missing)}; delete that folder to resume from the one before")
        return found

    def _files(self, name: str) -> set[str]:
        folder = self.folder(name)
        return {file.name for file in folder.iterdir()} if folder.is_dir() else set()

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
        """Where the mean over all tasks of this kind may lie."""
        values = self._means()
        if not all(map(math.isfinite, values)):
            return None
        return rate_interval(values, len(self.values), level) if self.rate else mean_interval(values, level)

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


# The records of a run: what members learn from, what they are selected on, and what no member was selected on.

log = logging.getLogger(__name__)

# The records of one file, or those of a mixture's files by their names.
TrainingData = Data | Mapping[str, Data]


@dataclass(frozen=True)
class Records:
    """`selection` and `test` are empty where fitness is measured in an environment. `digest` covers all files.

    `train` has the records of each file of a mixture by its name; those of a single file are under its path.
    `tasks` are the identities of the tasks that training records name, where members play others.
    """

    train: Mapping[str, Sequence[Example]]
    selection: Sequence[Example]
    test: Sequence[Example]
    ledgers: list[Ledger]
    digest: str
    tasks: frozenset[str] = frozenset()


def read_records(
    config: EvolveConfig,
    method: Method[Any],
    builder: CallBuilder,
    data: TrainingData | None = None,
    held_out: Data | None = None,
    test: Data | None = None,
) -> Records:
    """The records of the settings' files, or those given here.

    Without a held-out file, shares of the training files are held out. Without a test file, half of
    the held-out file is the test. Records that begin alike stay on one side of a split.
    """
    if config.method == "grpo":
        return Records({}, [], [], [], "played")
    files = _training_files(config, data)
    fitness, name = config.fitness, str(config.train_file) if config.train_file else "the mixture"
    kept = [fitness.eval_file if held_out is None else held_out, fitness.test_file if test is None else test]
    found = {key: method.examples(file, builder) for key, file in files.items()}
    apart = [None if file is None else method.examples(file, builder) for file in kept]
    trained = [("train_file" if key == name else f"the file {key} of mixture", one) for key, one in found.items()]
    _check_apart([*trained, *zip(("eval_file", "test_file"), apart, strict=True)])
    train = {key: _placed(one.examples, key if config.mixture else "") for key, one in found.items()}
    seen: set[int] = {_content(example) for examples in train.values() for example in examples}
    selection, final = (_unseen(one, file, seen) for one, file in zip(apart, ("eval_file", "test_file"), strict=True))
    if not config.environment.name:
        share, rng = fitness.test_size, random.Random(config.seed)  # noqa: S311  no secret
        if not selection:
            train, selection = _held_out(train, share, rng, name)
            if not final:
                train, final = _held_out(train, share / (1 - share), rng, name)
        elif not final:
            selection, final = _split(selection, 0.5, rng, str(fitness.eval_file))
    every = [*found.values(), *(one for one in apart if one is not None)]
    ledgers = [ledger for one in every for ledger in (one.rows, one.calls)]
    tasks = _tasks(config, files.values()) if config.environment.name else frozenset[str]()
    return Records(train, selection, final, ledgers, " ".join(str(one.digest) for one in every), tasks)


def _tasks(config: EvolveConfig, files: Iterable[Data]) -> frozenset[str]:
    """The identities of the tasks that the training records name."""
    format, found = str(config.set.get("format", "auto")), set[str]()
    for file in files:
        records = read(file, format=format, on_error="skip") if isinstance(file, str | Path) else file
        found.update(identity(one.task, by_content=config.tasks_by_content) for one in records)
    return frozenset(found)


def _training_files(config: EvolveConfig, data: TrainingData | None) -> dict[str, Data]:
    """What members learn from, by name."""
    if config.mixture:
        given = data if isinstance(data, Mapping) else {}
        return {name: _again(given.get(name, file)) for name, file in config.mixture.items()}
    assert config.train_file is not None and not isinstance(data, Mapping)
    return {str(config.train_file): _again(config.train_file if data is None else data)}


def _again(data: Data) -> Data:
    """Data that can be read more than once."""
    return data if isinstance(data, str | Path) else list(data)


def _placed(examples: Sequence[Example], file: str) -> list[Example]:
    """The examples of a file; of a mixture with its name in their places, which are the names of records."""
    return [replace(one, place=f"{file} {one.place}") for one in examples] if file else list(examples)


def _check_apart(found: Sequence[tuple[str, Examples[Any] | None]]) -> None:
    """InputError if two of the files are the same: what was trained or selected on measures nothing."""
    known: dict[str, str] = {}
    for name, one in found:
        if one is None:
            continue
        if (other := known.setdefault(str(one.digest), name)) != name:
            raise InputError(
                f"{name} has the same records as {other}; members are trained, selected and measured on different ones"
            )


def _content(example: Example) -> int:
    return hash(tuple((tuple(call.prompt_ids), tuple(call.completion_ids)) for call in example.calls))


def _unseen(found: Examples[Any] | None, file: str, seen: set[int]) -> list[Example]:
    """The records of a file that no file before it has, and from now on they are `seen`."""
    if found is None:
        return []
    contents = [(_content(example), example) for example in found.examples]
    kept = [example for content, example in contents if content not in seen]
    if dropped := len(contents) - len(kept):
        log.warning("%s: %s left out, which members are trained or selected on.", file, plural(dropped, "record"))
    if not kept:
        raise InputError(f"{file} has no record that members are not trained or selected on")
    seen |= {content for content, _ in contents}
    return kept


def _held_out(
    train: Mapping[str, list[Example]], share: float, rng: random.Random, name: str
) -> tuple[dict[str, list[Example]], list[Example]]:
    """The files without, and the records of, a share of all clusters: none is in two files on different sides."""
    together = [example for examples in train.values() for example in examples]
    rest, apart = _split(together, share, rng, name)
    left = set(map(id, rest))
    kept = {key: [example for example in examples if id(example) in left] for key, examples in train.items()}
    if empty := next((key for key, examples in kept.items() if not examples), None):
        raise InputError(f"all records of {empty} would be held out; give eval_file and test_file")
    return kept, apart


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
