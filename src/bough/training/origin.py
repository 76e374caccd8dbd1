"""What a run was made from, as digests in its folder: a run that resumes must still be that run.

Names and paths are in the settings, but a folder may have been trained again under its
name and a file written again. `origin.json` says what they contained when the run began.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bough.config.parts import flattened
from bough.config.training import TrainingConfig
from bough.config.yaml_file import YamlFile
from bough.disk import write_json
from bough.errors import InputError
from bough.models.digest import folder_digest, model_digest
from bough.paths import candidates
from bough.policy.load import base_and_adapter
from bough.rundir import RunDir

# From a checkpoint's weights to the run folder: weights, step-N, checkpoints.
DEPTH = 3


@dataclass(frozen=True)
class Origin:
    """Digests of the base model, of the start adapter, and of the examples of the training and the held-out file."""

    model: str
    adapter: str | None = None
    examples: str | None = None
    held_out: str | None = None

    @classmethod
    def of(cls, config: TrainingConfig, start: Path | None, examples: str | None, held_out: str | None) -> Origin:
        """What a run with these settings is made from now."""
        return cls(
            model=model_digest(base_and_adapter(config.model)[0]),
            adapter=folder_digest(start) if start else None,
            examples=examples,
            held_out=held_out,
        )

    @classmethod
    def read(cls, run: RunDir) -> Origin:
        """What the run was made from when it began."""
        try:
            return cls(**json.loads(run.origin.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise InputError(
                f"{run.origin} is missing or damaged, so it is not known what this run was trained from; "
                "start again with --overwrite or another --output-dir"
            ) from None

    def write(self, run: RunDir) -> None:
        write_json(run.origin, asdict(self))

    def differences(self, before: Origin, config: TrainingConfig, start: Path | None) -> list[str]:
        """Why a run that was made from `before` cannot resume with what is there now."""
        found = []
        if self.model != before.model:
            found.append(f"the model {config.model} is not the one the run began with, or has changed since")
        if self.adapter != before.adapter:
            found.append(f"the start adapter {start or 'none'} is not the one the run began with, or has changed since")
        if self.examples != before.examples:
            found.append(
                f"the examples of {config.data.train_file} are not those the run began with: the file or a setting "
                "that they depend on (--model, --chat-template, --max-length, --format) has changed"
            )
        return found


def run_of(weights: Path) -> RunDir | None:
    """The run that trained `weights`; None where they are in no run folder."""
    return next((RunDir(one) for one in weights.absolute().parents[:DEPTH] if RunDir(one).origin.is_file()), None)


def start_of(weights: Path) -> Path | None:
    """The adapter that the run which trained `weights` started from; None where that was the bare model.

    InputError where it is not known, or is not what it was.
    """
    run = run_of(weights)
    if run is None:
        raise InputError(f"{weights} is not in a run folder, so it is not known what it was trained from")
    before = Origin.read(run).adapter
    if before is None:
        return None
    settings = flattened(TrainingConfig, YamlFile.read(run.config).values)
    written = settings.get("adapter") or str(settings.get("model"))
    for start in candidates(written, run.path):
        if start.is_dir() and folder_digest(start) == before:
            return start
    raise InputError(f"{written}, the adapter that {run.path} started from, is not there or has changed since")
