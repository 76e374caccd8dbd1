"""The records of a run: what members learn from, what they are selected on, and what no member was selected on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bough.calls.builder import CallBuilder
from bough.errors import InputError
from bough.evolution.settings import EvolveConfig
from bough.ledger import Ledger
from bough.methods.base import Data, Example, Examples, Method


@dataclass(frozen=True)
class Records:
    """`selection` and `test` are empty where fitness is measured in an environment. `digest` covers all files."""

    train: Sequence[Example]
    selection: Sequence[Example]
    test: Sequence[Example]
    ledgers: list[Ledger]
    digest: str


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
    given = (data, held_out, test)
    named = (config.train_file, config.fitness.eval_file, config.fitness.test_file)
    files = [file if records is None else records for records, file in zip(given, named, strict=True)]
    found = [None if file is None else method.examples(file, builder) for file in files]
    _check_apart(found)
    train, selection, final = ([] if one is None else list(one.examples) for one in found)
    if not config.environment.name:
        share, rng = config.fitness.test_size, random.Random(config.seed)  # noqa: S311  no secret
        if not selection:
            train, selection = _split(train, share, rng, config.train_file)
            if not final:
                train, final = _split(train, share / (1 - share), rng, config.train_file)
        elif not final:
            selection, final = _split(selection, 0.5, rng, config.fitness.eval_file)
    ledgers = [ledger for one in found if one is not None for ledger in (one.rows, one.calls)]
    return Records(train, selection, final, ledgers, " ".join(str(one.digest) for one in found if one is not None))


def _check_apart(found: Sequence[Examples[Any] | None]) -> None:
    """InputError if two of the files are the same: what was trained or selected on measures nothing."""
    known: dict[str, str] = {}
    for name, one in zip(("train_file", "eval_file", "test_file"), found, strict=True):
        if one is None:
            continue
        if (other := known.setdefault(str(one.digest), name)) != name:
            raise InputError(
                f"{name} has the same records as {other}; members are trained, selected and measured on different ones"
            )


def _split(
    examples: Sequence[Example], share: float, rng: random.Random, file: Path | None
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
