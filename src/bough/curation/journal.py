"""A journal of the rounds that were tried, so that mining resumes after a kill.

One line per wave of rounds, written when the wave has ended, in a file next to the
output that is removed once the output is written. The next start with the same settings,
weights and trajectories takes its first waves from the journal.
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
from bough.disk import open_own
from bough.models.weights import stamp
from bough.types import Pair

Result = Pair | str


class Journal:
    """The waves of one run of `bough pairs`."""

    def __init__(self, config: PairsConfig, filed: Sequence[SourcedTrajectory]) -> None:
        self.path = config.output.with_name(f".{config.output.name}.looked-into")
        self._key = _key(config, filed)
        self._old = iter(self._read())

    def recall(self, wave: Sequence[Round]) -> tuple[list[Result], dict[str, Any]] | None:
        """The results of the next wave and the cost after it, if the journal has them."""
        line = next(self._old, None)
        if line is None or line["rounds"] != _names(wave):
            self._old = iter(())
            return None
        results = [one if isinstance(one, str) else Pair.model_validate(one) for one in line["results"]]
        return results, line["cost"]

    def add(self, wave: Sequence[Round], results: Sequence[Result], cost: dict[str, Any]) -> None:
        """Writes a wave to disk."""
        shown = [one if isinstance(one, str) else one.model_dump(mode="json") for one in results]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with os.fdopen(open_own(self.path), "ab") as file:
            if fresh:
                file.write(to_json({"key": self._key}) + b"\n")
            file.write(to_json({"rounds": _names(wave), "results": shown, "cost": cost}) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> Iterator[dict[str, Any]]:
        """The complete lines of a journal of this run; a journal of another run is removed."""
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
            with os.fdopen(open_own(self.path), "ab") as file:
                file.truncate(len(whole))
        yield from lines[1:]


def _key(config: PairsConfig, filed: Iterable[SourcedTrajectory]) -> str:
    settings = {name: value for name, value in config.flat_dump().items() if name not in ("output", "overwrite")}
    digest = hashlib.blake2b(to_json(settings), digest_size=16)
    digest.update(to_json(stamp(config.agent.model, config.agent.adapter)))
    for item in filed:
        digest.update(to_json(item.trajectory))
    return digest.hexdigest()


def _names(wave: Sequence[Round]) -> list[list[Any]]:
    return [[one.item.trajectory.id, one.at] for one in wave]
