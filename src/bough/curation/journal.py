"""What was looked into before a kill: playing on takes long, and what is known is not played again.

A line a wave of rounds, written when the wave has ended, in a file beside the output that
goes when the output is there. The next start with the same settings, the same weights
and the same trajectories takes the waves from it, in order, as far as they go.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from bough.config.curation import PairsConfig
from bough.curation.rounds import Round
from bough.curation.source import SourcedTrajectory
from bough.models.weights import stamp
from bough.types import Pair

Result = Pair | str


class Journal:
    """The waves of one piece of work."""

    def __init__(self, config: PairsConfig, filed: Sequence[SourcedTrajectory]) -> None:
        self.path = config.output.with_name(f".{config.output.name}.looked-into")
        self._key = _key(config, filed)
        self._old = iter(self._read())

    def recall(self, wave: Sequence[Round]) -> tuple[list[Result], dict[str, Any]] | None:
        """The results of the next wave and what had been spent behind it, if it is on file."""
        line = next(self._old, None)
        if line is None or line["rounds"] != _names(wave):
            self._old = iter(())
            return None
        results = [one if isinstance(one, str) else Pair.model_validate(one) for one in line["results"]]
        return results, line["cost"]

    def add(self, wave: Sequence[Round], results: Sequence[Result], cost: dict[str, Any]) -> None:
        """Puts a wave on the disk."""
        shown = [one if isinstance(one, str) else one.model_dump(mode="json") for one in results]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with self.path.open("ab") as file:
            if fresh:
                file.write(to_json({"key": self._key}) + b"\n")
            file.write(to_json({"rounds": _names(wave), "results": shown, "cost": cost}) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> Iterator[dict[str, Any]]:
        """The whole lines of a file that is of this work; one that is not gives way."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            lines = []
        if not lines or lines[0].get("key") != self._key:
            self.remove()
            return
        if len(whole) < len(data):  # killed while a line was written
            os.truncate(self.path, len(whole))
        yield from lines[1:]


def _key(config: PairsConfig, filed: Iterable[SourcedTrajectory]) -> str:
    digest = hashlib.blake2b(config.model_dump_json(exclude={"output", "overwrite"}).encode(), digest_size=16)
    digest.update(to_json(stamp(config.model, config.adapter)))
    for item in filed:
        digest.update(to_json(item.trajectory))
    return digest.hexdigest()


def _names(wave: Sequence[Round]) -> list[list[Any]]:
    return [[one.item.trajectory.id, one.at] for one in wave]
