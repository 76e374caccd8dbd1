"""A folder of played episodes: what was asked for, every trajectory, and how it went.

    OUTPUT/config.yaml            the settings
    OUTPUT/trajectories.jsonl     one episode a line, as it happened
    OUTPUT/images/ID/TURN.png     screenshots, where the world was asked for them
    OUTPUT/report.json            the numbers
    OUTPUT/rescored.json          the trainer's log-probabilities of some replies: {episode: {turn: [one a token]}}

An episode is on file whole or not at all; a collection that was killed goes on with
the episodes that are missing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import yaml

from bough.config.rollouts import CollectConfig
from bough.disk import sync, write_atomically, write_json
from bough.errors import InputError
from bough.trajectories.reader import Reader
from bough.trajectories.writer import Writer
from bough.types import Trajectory

RESCORED = "rescored.json"
# Settings that change how fast episodes are played, or how many, but not what is in them.
FREE = {"output", "concurrency", "retries", "overwrite", "tasks", "attempts", "rescore", "key_variable", "base_url"}


class Collection:
    """The folder, open for more episodes. `finished` are the ids of those that are on file."""

    def __init__(self, config: CollectConfig) -> None:
        self.path = config.output
        self.trajectories = self.path / "trajectories.jsonl"
        self.finished: set[str] = set()
        if config.overwrite and self._is_ours():
            shutil.rmtree(self.path)
        self._agree(config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / "config.yaml", config.to_yaml())
        except OSError as error:
            raise InputError(f"--output {self.path}: cannot be used as a folder: {error.strerror}") from None
        self._writer = Writer(self.trajectories, batch_s=0.0)
        self.finished = {record.id for record in self.read()}

    def read(self) -> list[Trajectory]:
        """Every episode on file."""
        reader = Reader(self.trajectories, format="bough", on_error="skip")
        return [record for record in reader if isinstance(record, Trajectory)]

    def add(self, trajectory: Trajectory, images: list[tuple[int, bytes]]) -> None:
        """Puts a finished episode on the disk, its images first."""
        if images:
            folder = self.path / "images" / _file_name(trajectory.id)
            folder.mkdir(parents=True, exist_ok=True)
            names = []
            for turn, image in images:
                name = f"{turn:03}.png"
                (folder / name).write_bytes(image)
                names.append(f"images/{folder.name}/{name}")
            trajectory = trajectory.model_copy(update={"info": {**trajectory.info, "images": names}})
        self._writer.write(trajectory)
        self._writer.flush()
        self.finished.add(trajectory.id)

    def finish(self, order: Sequence[str]) -> None:
        """Puts the episodes in this order, whichever ended first: the same settings give the same file."""
        place = {id: number for number, id in enumerate(order)}
        records = self.read()
        ordered = sorted(records, key=lambda record: place.get(record.id, len(place)))
        if ordered == records:
            return
        beside = self.trajectories.with_name(f".{self.trajectories.name}.{os.getpid()}.jsonl")
        with Writer(beside) as writer:
            for record in ordered:
                writer.write(record)
        self._writer.close()
        beside.rename(self.trajectories)
        sync(self.path)

    def keep_rescored(self, logprobs: dict[str, dict[int, list[float]]]) -> None:
        """What `bough view` shows the gap between sampler and trainer by."""
        if logprobs:
            write_json(self.path / RESCORED, logprobs)

    def report(self, numbers: dict[str, Any]) -> None:
        write_json(self.path / "report.json", numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def _is_ours(self) -> bool:
        return self.trajectories.exists() and (self.path / "config.yaml").exists()

    def _agree(self, config: CollectConfig) -> None:
        """A collection goes on only with the settings it was begun with."""
        file = self.path / "config.yaml"
        if not self.trajectories.exists() or not file.exists():
            return
        old, new = yaml.safe_load(file.read_text(encoding="utf-8")), yaml.safe_load(config.to_yaml())
        changed = sorted(key for key in new if key not in FREE and old.get(key) != new[key])
        if changed:
            raise InputError(
                f"{self.path} holds episodes played with other settings; take another --output, or --overwrite:",
                [f"{key} was {old.get(key)!r}, now {new[key]!r}" for key in changed],
            )


def _file_name(text: str) -> str:
    return re.sub(r"[^\w#-]+", "_", text)
