"""The weight or advantage that training gives each turn, according to a training run in the folder.

A file that a run trained on is read with that run's settings. Without one, the attempts
of a group have GRPO's plain advantages; a lone trajectory has none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bough.config.parts import leaves
from bough.errors import BoughError, InputError, RowError
from bough.methods.advantages import group_advantages
from bough.rewards.score import score
from bough.runs.settings_file import read_settings
from bough.types import Group, Trajectory
from bough.viewer.index import Index


@dataclass(frozen=True)
class Credit:
    """One value per turn, None where there is none. `source` says where they come from."""

    weights: list[float | None]
    advantages: list[float | None]
    source: str = ""


def trajectory_credit(index: Index, file: str, record: Trajectory) -> Credit:
    """The weights of a demonstration."""
    nothing: list[float | None] = [None] * len(record.turns)
    settings, stage = trained_with(index, file)
    if settings is None:
        return Credit(nothing, nothing)
    weights = [1.0 if turn.trained else 0.0 for turn in record.turns]
    if settings.get("step_weighted_loss"):
        from bough.methods.sft import step_reward, step_weights

        given = step_weights([step_reward(turn) for turn in record.turns])
        weights = [weight * one for weight, one in zip(weights, given, strict=True)]
    return Credit([*weights], nothing, f"weights as {stage} used them")


def group_credit(index: Index, file: str, group: Group) -> list[Credit]:
    """The advantages of every attempt of a group."""
    settings, stage = trained_with(index, file)
    spread: list[list[float | None]] | None = None
    source = "advantages of the rewards in this group"
    if settings is not None:
        spread, source = _as_trained(group, settings), f"advantages as {stage} used them"
    if spread is None:
        found = group_advantages([score(attempt) for attempt in group.attempts]).values
        spread = [[value] * len(attempt.turns) for value, attempt in zip(found, group.attempts, strict=True)]
    return [Credit([None] * len(values), values, source) for values in spread]


def trained_with(index: Index, file: str) -> tuple[dict[str, Any] | None, str]:
    """The settings of the newest training run in the folder that read `file`, and the run's name."""
    path = index.root.path / file
    for folder in reversed(index.contents.training):
        settings = stage_settings(index, folder)
        named = settings.get("train_file")
        own = folder == str(Path(file).parent.parent) and Path(file).parent.name == "rollouts"
        if own or (isinstance(named, str) and _is(named, path, index.root.path, folder)):
            return settings, folder
    return None, ""


def stage_settings(index: Index, folder: str) -> dict[str, Any]:
    """The settings in a stage's `config.yaml`; empty if there are none that can be read."""
    file = index.root.inside(index.root.path / folder / "config.yaml")
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return {}
    return dict(_settings(file, found.st_mtime_ns, found.st_size)) if file is not None and found is not None else {}


@lru_cache(maxsize=256)
def _settings(file: Path, mtime: int, size: int) -> dict[str, Any]:  # noqa: ARG001  a file that changed is another
    try:
        return read_settings(file)[1]
    except InputError:
        return {}


def _is(named: str, path: Path, root: Path, folder: str) -> bool:
    """Whether a training file's name means `path`; runs are often started, or moved, somewhere else."""
    if os.path.normpath(root / folder / named) == os.path.normpath(path):
        return True
    tail = tuple(part for part in Path(named).parts if part != "..")
    whole = (root.name, *path.relative_to(root).parts)
    return len(tail) > 1 and (whole[-len(tail) :] == tail or tail[-len(whole) :] == whole)


def _as_trained(group: Group, settings: dict[str, Any]) -> list[list[float | None]] | None:
    from bough.methods.grpo import GRPO, GRPOConfig

    known = {key: value for key, value in settings.items() if key in leaves(GRPOConfig)}
    try:
        return GRPO(GRPOConfig(**known)).advantages(group)
    except (BoughError, RowError, ArithmeticError):
        return None
