"""A folder of played episodes: what was asked for, every trajectory, and how it went.

    OUTPUT/config.yaml            the settings
    OUTPUT/trajectories.jsonl     one episode a line, as it happened
    OUTPUT/images/ID/TURN.png     screenshots, where the world was asked for them
    OUTPUT/report.json            the numbers
    OUTPUT/weights.json           names, sizes and times of the files of the model that played
    OUTPUT/rescored.json          the trainer's log-probabilities of some replies: {episode: {turn: [one a token]}}

An episode is on file whole or not at all; a collection that was killed goes on with
the episodes that are missing, as long as settings, weights and tasks are the same.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import yaml
from pydantic_core import from_json

from bough.config.rollouts import CollectConfig
from bough.config.yaml_file import YamlFile
from bough.disk import read_json, remove, sync, write_atomically, write_json
from bough.environments.tasks import digest
from bough.errors import BoughError, InputError
from bough.models.weights import stamp
from bough.rollouts.collect import Attempt
from bough.trajectories.reader import Reader
from bough.trajectories.writer import Writer
from bough.types import Trajectory

SETTINGS, TRAJECTORIES, IMAGES = "config.yaml", "trajectories.jsonl", "images"
REPORT, RESCORED, WEIGHTS = "report.json", "rescored.json", "weights.json"
# Settings that change how fast episodes are played, or how many, but not what is in them.
FREE = {"output", "concurrency", "retries", "overwrite", "tasks", "attempts", "rescore", "key_variable", "base_url"}
WAY_OUT = "take another --output, or --overwrite"
MAX_NAMED = 10


class Collection:
    """The folder, open for more episodes. `finished` has the id of each that is on file, and its task's digest."""

    def __init__(self, config: CollectConfig) -> None:
        self.path = config.output.absolute()  # an environment may change the working directory
        self.trajectories = self.path / TRAJECTORIES
        weights = stamp(config.model, config.adapter)
        try:
            if self._is_ours():
                if config.overwrite:
                    self._clear()
                else:
                    self._agree(config)
                    self._same_weights(config.model, weights)
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / SETTINGS, config.to_yaml())
            write_json(self.path / WEIGHTS, weights)
        except OSError as error:
            raise InputError(f"--output {self.path}: cannot be used as a folder: {error.strerror}") from None
        self._writer = Writer(self.trajectories, batch_s=0.0)
        self.finished = {record.id: digest(record.task) for record in self}

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode on file, read one at a time."""
        reader = Reader(self.trajectories, format="bough", on_error="skip")
        return (record for record in reader if isinstance(record, Trajectory))

    def missing(self, wanted: Iterable[Attempt]) -> list[Attempt]:
        """What is not on file. An episode that is, but of another task under the same name, is an InputError."""
        wanted = list(wanted)
        others = [one.id for one in wanted if self.finished.get(one.id, "") not in ("", digest(one.task))]
        if others:
            more = [f"and {len(others) - MAX_NAMED} more"] if len(others) > MAX_NAMED else []
            raise InputError(
                f"{self.path} holds episodes of other tasks under the names of these; {WAY_OUT}:",
                [*others[:MAX_NAMED], *more],
            )
        return [attempt for attempt in wanted if attempt.id not in self.finished]

    def add(self, trajectory: Trajectory, images: list[tuple[int, bytes]]) -> None:
        """Puts a finished episode on the disk, its images first."""
        if images:
            folder = self.path / IMAGES / _file_name(trajectory.id)
            folder.mkdir(parents=True, exist_ok=True)
            names = []
            for turn, image in images:
                name = f"{turn:03}.png"
                (folder / name).write_bytes(image)
                names.append(f"{IMAGES}/{folder.name}/{name}")
            trajectory = trajectory.model_copy(update={"info": {**trajectory.info, "images": names}})
        self._writer.write(trajectory)
        self._writer.flush()
        self.finished[trajectory.id] = digest(trajectory.task)

    def finish(self, order: Sequence[str]) -> None:
        """Puts the episodes in this order, whichever ended first: the same settings give the same file."""
        place = {id: number for number, id in enumerate(order)}
        with self.trajectories.open("rb") as file:
            found = sorted(lines := list(_lines(file, place)))
            if found == lines:
                return
            beside = self.trajectories.with_name(f".{self.trajectories.name}.{os.getpid()}")
            try:
                with beside.open("wb") as ordered:
                    for _, offset, size in found:
                        file.seek(offset)
                        ordered.write(file.read(size))
                sync(beside)
            except OSError as error:
                remove(beside)
                raise BoughError(f"{beside}: cannot write ({error.strerror}); the episodes are safe") from error
        self._writer.close()
        beside.rename(self.trajectories)
        sync(self.path)

    def keep_rescored(self, logprobs: dict[str, dict[int, list[float]]]) -> None:
        """What `bough view` shows the gap between sampler and trainer by."""
        if logprobs:
            write_json(self.path / RESCORED, logprobs)

    def report(self, numbers: dict[str, Any]) -> None:
        write_json(self.path / REPORT, numbers)

    def old_report(self) -> dict[str, Any] | None:
        """The numbers on file, if they are those of all episodes on file."""
        numbers = _json(self.path / REPORT)
        whole = isinstance(numbers, dict) and numbers.get("episodes") == len(self.finished)
        return numbers if whole else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def _is_ours(self) -> bool:
        return self.trajectories.exists() and (self.path / SETTINGS).exists()

    def _clear(self) -> None:
        """Forgets the collection; what else lies in the folder is not ours."""
        for name in (TRAJECTORIES, SETTINGS, REPORT, RESCORED, WEIGHTS, IMAGES):
            remove(self.path / name)

    def _agree(self, config: CollectConfig) -> None:
        """A collection goes on only with the settings it was begun with."""
        old, new = _settings(self.path / SETTINGS), yaml.safe_load(config.to_yaml())
        changed = sorted(key for key in new if key not in FREE and old.get(key) != new[key])
        if changed:
            raise InputError(
                f"{self.path} holds episodes played with other settings; {WAY_OUT}:",
                [f"{key} was {old.get(key)!r}, now {new[key]!r}" for key in changed],
            )

    def _same_weights(self, model: str, now: list[list[str | int]]) -> None:
        """Episodes on file are those of the model as it is now: a folder may have been trained anew under its name."""
        note = self.path / WEIGHTS
        if note.exists() and _json(note) != now:
            raise InputError(f"{model} has changed since its episodes in {self.path} were played; {WAY_OUT}")


def _lines(file: BinaryIO, place: dict[str, int]) -> Iterator[tuple[int, int, int]]:
    """For each line its place in the order, its offset and its size. A line that is no episode comes last."""
    offset = 0
    for line in file:
        try:
            id = from_json(line)["id"]
        except (ValueError, TypeError, KeyError):
            id = None
        yield place.get(id, len(place)) if isinstance(id, str) else len(place), offset, len(line)
        offset += len(line)


def _settings(file: Path) -> dict[str, Any]:
    try:
        values = YamlFile.read(file).values
        if not values:
            raise InputError(f"{file}: the file is empty")
    except InputError as error:
        raise InputError(f"{error}; how the episodes beside it were played is not known: {WAY_OUT}") from None
    return values


def _json(file: Path) -> Any:
    """What is in the file; None where it cannot be read, which no good one says."""
    try:
        return read_json(file)
    except (OSError, ValueError):
        return None


def _file_name(text: str) -> str:
    """An episode's id as a folder's name; ids that would fall together are kept apart by a digest."""
    plain = re.sub(r"[^\w#-]+", "_", text)[:60]
    return plain if plain == text else f"{plain}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
