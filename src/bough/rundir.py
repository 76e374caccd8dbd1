"""Every file name inside a run folder, in one place."""

from __future__ import annotations

from pathlib import Path

from bough.config.base import Config
from bough.disk import remove, write_atomically
from bough.errors import InputError


class RunDir:
    """A folder that holds what one run was told, did and left behind."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.ledger = self.path / "ledger.json"
        self.report = self.path / "report.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.cache = self.path / "cache"
        self.rollouts = self.path / "rollouts"
        self.final = self.path / "final"
        self.best = self.path / "best"

    def bad_batch(self, step: int) -> Path:
        return self.path / f"bad-batch-{step}.jsonl"

    def create(self, config: Config) -> None:
        """Makes the folder and writes the resolved settings into it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config, config.to_yaml())
        except OSError as error:
            raise InputError(f"{self.path}: cannot be used as a run folder: {error.strerror}") from None

    def clear(self) -> None:
        """Removes what an earlier run left here; files that are not a run's stay."""
        folders = (self.checkpoints, self.cache, self.rollouts, self.final, self.best)
        try:
            for path in (*folders, self.config, self.ledger, self.report, self.metrics):
                remove(path)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be cleared: {error.strerror}: {error.filename}") from None

    @property
    def used(self) -> bool:
        """Whether a training run has left something here."""
        return self.metrics.exists() or self.checkpoints.exists() or self.final.exists()
