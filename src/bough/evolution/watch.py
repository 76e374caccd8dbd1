"""What a run reports while it runs, for a live table or a tracker. All values are plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Watcher(Protocol):
    """Follows a run. Members are described as in the lineage."""

    def begin(self, generation: int, members: Sequence[Mapping[str, Any]], steps: int) -> None:
        """A generation begins to train; every member makes `steps` updates."""
        ...

    def updated(self, done: int, losses: Mapping[str, float]) -> None:
        """`done` updates of the generation are finished; `losses` are those of the last one."""
        ...

    def played(self, done: int, total: int) -> None:
        """Of the episodes that are being played now, for an update or a measurement, `done` are finished."""
        ...

    def measuring(self, generation: int, members: Sequence[Mapping[str, Any]]) -> None:
        """A generation is trained and its fitness is being measured."""
        ...

    def measured(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """A generation is complete; these are its lines in the lineage, fittest first."""
        ...


class Unwatched:
    """A watcher that does nothing."""

    def begin(self, generation: int, members: Sequence[Mapping[str, Any]], steps: int) -> None:
        pass

    def updated(self, done: int, losses: Mapping[str, float]) -> None:
        pass

    def played(self, done: int, total: int) -> None:
        pass

    def measuring(self, generation: int, members: Sequence[Mapping[str, Any]]) -> None:
        pass

    def measured(self, lines: Sequence[Mapping[str, Any]]) -> None:
        pass
