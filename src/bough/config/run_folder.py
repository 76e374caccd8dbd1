"""The files inside a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from bough.config.base import Config
from bough.errors import InputError
from bough.files import (
    locked,
    open_file,
    refuse_links,
    remove,
    remove_drafts,
    without_absolute,
    working_directory,
    write_atomically,
)


class RunDir:
    """The folder of one training run: its settings, checkpoints and results."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.origin = self.path / "origin.json"
        self.ledger = self.path / "ledger.json"
        self.report = self.path / "report.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.cache = self.path / "cache"
        self.rollouts = self.path / "rollouts"
        self.episodes = self.path / "episodes"
        self.final = self.path / "final"
        self.best = self.path / "best"

    def bad_batch(self, step: int) -> Path:
        return self.path / f"bad-batch-{step}.jsonl"

    def create(self, config: Config) -> None:
        """Creates the folder and writes the resolved settings into it, without absolute paths."""
        settings = yaml.safe_dump(self.recorded(config.recorded()), sort_keys=False, allow_unicode=True)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config, settings)
        except OSError as error:
            raise self._unusable(error) from None

    def recorded(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings as the run folder keeps them.

        The folder itself is left out if it is far from the working directory: relative to
        itself it would be ".", and --config with that file would write into the working directory.
        """
        values: dict[str, Any] = without_absolute(settings, *working_directory(), self.path.absolute())
        return {key: value for key, value in values.items() if value != "." or settings[key] == "."}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training here. The system releases the lock when this process ends.

        Drafts of files that a killed process has left are removed.
        """
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.path / ".lock", wait=False))
                remove_drafts(self.path)
            except BlockingIOError:
                raise InputError(
                    f"{self.path} is in use: another process is training there; "
                    "wait for it, or give another --output-dir"
                ) from None
            except OSError as error:
                raise self._unusable(error) from None
            yield

    def clear(self) -> None:
        """Removes the files of an earlier run; other files stay."""
        folders = (self.checkpoints, self.cache, self.rollouts, self.episodes, self.final, self.best)
        files = (self.config, self.origin, self.ledger, self.report, self.metrics)
        try:
            for path in (*folders, *files, *self.path.glob("bad-batch-*.jsonl")):
                remove(path)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be cleared: {error.strerror}: {error.filename}") from None

    def make_room(self, *, resume: bool, overwrite: bool) -> None:
        """Clears the folder if it is to be overwritten.

        InputError where it has a run that nothing was said about, or links in place of what a run fills and empties.
        """
        if not resume and self.used:
            if not overwrite:
                raise InputError(
                    f"{self.path} already contains a run; --resume continues it, --overwrite deletes it, "
                    "--output-dir names another folder"
                )
            self.clear()
        refuse_links(self.path / "tensorboard", self.path / "wandb")
        for folder in (self.checkpoints, self.cache, self.rollouts, self.episodes):
            refuse_links(folder, *(folder.iterdir() if folder.is_dir() else ()))

    @property
    def used(self) -> bool:
        """Whether a training run has got anywhere here: a start that failed before its first step does not count."""
        steps = self.metrics.is_file() and self.metrics.stat().st_size > 0
        saved = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        return steps or saved or self.final.exists()

    def _unusable(self, error: OSError) -> InputError:
        return InputError(f"{self.path}: cannot be used as a run folder: {error.strerror}")


# `metrics.jsonl`: one line per logged step, readable during the run.

MAX_LINE = 1 << 20
MAX_STEP = 2**63


class MetricsFile:
    """Appends lines. A run that resumes at step n drops the lines after it: they will come again."""

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        kept = [line for line in self.read(path) if line["step"] <= first_step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """All complete lines; none where there is no file. What is not a step's line is skipped."""
        return list(MetricsFile.each(path))

    @staticmethod
    def each(path: Path) -> Iterator[dict[str, Any]]:
        """The same one by one. Raises OSError for what is not a regular file: a pipe would block."""
        if not path.exists():
            return
        with open_file(path) as file:
            # A longer line is read in pieces, none of which is a step's line.
            for line in iter(lambda: file.readline(MAX_LINE), b""):
                try:
                    values = json.loads(line.decode("utf-8", "replace"))
                except (ValueError, RecursionError):  # cut off by a kill
                    continue
                step = values.get("step") if isinstance(values, dict) else None
                if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < MAX_STEP:
                    yield values

    def append(self, values: dict[str, Any]) -> None:
        """One line; numbers that are not finite become null, as JSON has none."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")
