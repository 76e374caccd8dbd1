"""The records of a run: what members learn from, what they are selected on, and what no member was selected on."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bough.calls.builder import CallBuilder
from bough.errors import InputError
from bough.evolution.settings import EvolveConfig
from bough.ledger import Ledger
from bough.methods.base import Data, Example, Examples, Method
from bough.plural import plural

log = logging.getLogger(__name__)

# The records of one file, or those of a mixture's files by their names.
TrainingData = Data | Mapping[str, Data]


@dataclass(frozen=True)
class Records:
    """`selection` and `test` are empty where fitness is measured in an environment. `digest` covers all files.

    `train` has the records of each file of a mixture by its name; those of a single file are under its path.
    """

    train: Mapping[str, Sequence[Example]]
    selection: Sequence[Example]
    test: Sequence[Example]
    ledgers: list[Ledger]
    digest: str


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
    read = [*found.values(), *(one for one in apart if one is not None)]
    ledgers = [ledger for one in read for ledger in (one.rows, one.calls)]
    return Records(train, selection, final, ledgers, " ".join(str(one.digest) for one in read))


def _training_files(config: EvolveConfig, data: TrainingData | None) -> dict[str, Data]:
    """What members learn from, by name."""
    if config.mixture:
        given = data if isinstance(data, Mapping) else {}
        return {name: given.get(name, file) for name, file in config.mixture.items()}
    assert config.train_file is not None and not isinstance(data, Mapping)
    return {str(config.train_file): config.train_file if data is None else data}


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
