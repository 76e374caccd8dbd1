"""Sources of games: an endless generator, or the official games of a folder."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from bough.errors import InputError, did_you_mean
from bough.worlds.household import official as files
from bough.worlds.household.game import Game, Kind
from bough.worlds.household.generate import SPLITS, Split, generate

# The official folders of our splits.
FOLDERS: dict[Split, str] = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}


def generated(kinds: Sequence[Kind], split: str, seed: int) -> Iterator[tuple[str, Game]]:
    """An endless series of games with their names, the task types in turn."""
    known = _split(split)
    for number in count():
        kind = kinds[number % len(kinds)]
        rng = random.Random(f"{known} {seed} {number} {kind}")  # noqa: S311  no secret
        yield f"{known}-{seed}-{number}-{kind}", generate(kind, known, rng)


def official(source: Path, kinds: Sequence[Kind], split: str, rng: random.Random) -> Iterator[tuple[str, Game]]:
    """The games of a file or folder, shuffled; of a folder with the official splits in it, those of one split."""
    if source.is_file():
        yield "/".join(source.resolve().parent.parts[-2:]), files.read(source)
        return
    folder = source / FOLDERS[_split(split)]
    if not folder.is_dir():
        if any((source / name).is_dir() for name in FOLDERS.values()):
            raise InputError(f"{source}: there is no folder {folder.name}, which the split {split} needs")
        folder = source
    paths = sorted(folder.rglob(files.FILE_NAME))
    if not paths:
        raise InputError(f"{source}: there is no {files.FILE_NAME} in it")
    rng.shuffle(paths)
    for path in paths:
        # Some files are marked as not solvable; the original leaves them out too.
        if not files.load(path).get("solvable", True):
            continue
        game = files.read(path)
        if game.goal.kind in kinds:
            yield str(path.parent.relative_to(folder)), game


def _split(name: str) -> Split:
    for split in SPLITS:
        if name in (split, FOLDERS[split]):
            return split
    raise InputError(f"there is no split {name!r}{did_you_mean(name, SPLITS)}")
