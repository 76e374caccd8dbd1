"""Finished episodes on disk until their batch is: one file per task, one line per episode, written as it ends.

    episodes/000012.jsonl    finished attempts at task number 12

A run that was killed takes them up again. Each line says which settings and which weights
sampled the episode; one that was sampled by others is played again. A task's file goes
when its group is in a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from bough.disk import remove
from bough.trajectories.reader import Reader
from bough.trajectories.writer import Writer
from bough.types import Trajectory

log = logging.getLogger(__name__)
SAMPLED_BY = "sampled_by"  # in a record's info, on disk only


class EpisodeFiles:
    """The folder. `weights` has the digest of the weights of every version so far, a version for each batch."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder, self.settings = folder, settings
        self.weights: dict[int, str] = {}

    def add(self, number: int, episode: Trajectory, versions: Iterable[int]) -> None:
        """Writes a finished episode to the disk. RowError if it cannot be written as JSON."""
        weights = {str(version): self.weights[version] for version in versions}
        sampled_by = {"settings": self.settings, "weights": weights}
        with Writer(self._path(number)) as writer:
            writer.write(episode.model_copy(update={"info": {**episode.info, SAMPLED_BY: sampled_by}}))

    def read(self, number: int, since: int = 0) -> dict[str, Trajectory]:
        """The finished attempts at a task, by id, sampled by version `since` or later ones.

        If any were sampled differently, the file is removed.
        """
        path, found = self._path(number), dict[str, Trajectory]()
        if not path.exists():
            return found
        records = [one for one in Reader(path, format="bough", on_error="skip") if isinstance(one, Trajectory)]
        for record in records:
            info = dict(record.info)
            if not self._is_of_this_run(info.pop(SAMPLED_BY, None), since):
                log.warning("%s was sampled with different settings or weights: its episodes are played again.", path)
                remove(path)
                return {}
            found[record.id] = record.model_copy(update={"info": info})
        return found

    def remove(self, number: int) -> None:
        """Removes the attempts at a task."""
        self._path(number).unlink(missing_ok=True)

    def keep_only(self, unfinished: Iterable[int], next_number: int) -> None:
        """Removes what batches have used: the files of tasks before `next_number` that are not unfinished."""
        kept = {self._path(number) for number in unfinished}
        for path in self.folder.glob("*.jsonl"):
            if path not in kept and path.stem.isdecimal() and int(path.stem) < next_number:
                remove(path)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.jsonl"

    def _is_of_this_run(self, sampled_by: object, since: int) -> bool:
        if not isinstance(sampled_by, dict) or sampled_by.get("settings") != self.settings:
            return False
        weights = sampled_by.get("weights")
        if not isinstance(weights, dict) or not weights:
            return False
        known = all(self.weights.get(int(version)) == digest for version, digest in weights.items())
        return known and min(map(int, weights)) >= since
