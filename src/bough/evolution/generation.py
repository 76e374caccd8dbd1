"""A generation on disk: all members, complete or not there at all.

    checkpoints/generation-00003/           the population as the generation begins
    checkpoints/generation-00003-trained/   after its updates, before selection
        NAME/                               one folder per member
        state.json                          what has been used up so far, losses, and the files of each member

A run that was killed resumes from the newest of these folders. Everything that leads from one
to the next is a function of its content and the seed, so the population is the same as without the kill.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from bough.disk import drafting, put_in_place, read_json, remove, write_json
from bough.errors import InputError
from bough.evolution.individual import Individual

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
