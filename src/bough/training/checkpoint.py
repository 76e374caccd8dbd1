"""Checkpoints: everything a run needs to go on as if nothing had happened, whole or not at all.

    checkpoints/step-00000100/
        weights/                the adapter (or model), loadable by anyone
        optimizer.safetensors   the optimizer's tensors
        random.safetensors      the state of the random number generators
        state.json              the step, the optimizer's numbers, the counters

A checkpoint is written beside, synced and renamed, so one that has its name is complete.
Loading reads safetensors and JSON and executes nothing.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bough.disk import put_in_place
from bough.errors import InputError
from bough.training.shard import gather, piece

NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path

    @property
    def step(self) -> int:
        match = NAME.fullmatch(self.path.name)
        assert match is not None
        return int(match[1])

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    def restore(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Puts the optimizer's state and the random number generators back; returns the counters.

        The optimizer's settings stay its own: a run may go on with others than it began with.
        """
        try:
            state = json.loads((self.path / "state.json").read_text())
            found = _unflatten(load_file(self.path / "optimizer.safetensors"), state["optimizer"])
            optimizer.load_state_dict(_with_settings(_in_pieces(found, optimizer), optimizer))
            randomness = load_file(self.path / "random.safetensors")
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{self.path}: not a checkpoint of this run: {error}") from error
        torch.set_rng_state(randomness["cpu"])
        if "cuda" in randomness and torch.cuda.is_available():
            torch.cuda.set_rng_state(randomness["cuda"])
        counters: dict[str, Any] = state["counters"]
        return counters


class OptimizerState(NamedTuple):
    """An optimizer's state as named tensors and as JSON."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> OptimizerState:
        """The state as it is now. Where weights are sharded every process must ask; the first gets it whole."""
        state = optimizer.state_dict()
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {"state": {}, "param_groups": state["param_groups"]}
        for index, values in state["state"].items():
            for name, value in _unwrapped(values).items():
                if isinstance(value, Tensor):
                    tensors[f"{index}.{name}"] = value
                else:
                    numbers["state"].setdefault(str(index), {})[name] = value
        return cls(_each_by_itself(gather(tensors)), numbers)


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints of a run, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((Checkpoint(p) for p in folder.iterdir() if NAME.fullmatch(p.name)), key=lambda c: c.step)


def save(
    folder: Path,
    step: int,
    save_weights: Callable[[Path], None],
    optimizer: OptimizerState,
    counters: dict[str, Any],
    *,
    keep: int,
) -> Checkpoint:
    """Writes a checkpoint and then removes all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover)
    draft = folder / f".step-{step:08}"
    draft.mkdir()
    save_weights(draft / "weights")
    save_file(optimizer.tensors, draft / "optimizer.safetensors")
    randomness = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        randomness["cuda"] = torch.cuda.get_rng_state()
    save_file(randomness, draft / "random.safetensors")
    (draft / "state.json").write_text(json.dumps({"optimizer": optimizer.numbers, "counters": counters}))
    saved = Checkpoint(folder / f"step-{step:08}")
    put_in_place(draft, saved.path)
    for old in checkpoints(folder)[:-keep]:
        # A rename first: a removal that is cut short must not leave half a checkpoint under its name.
        doomed = old.path.with_name(f".{old.path.name}")
        old.path.rename(doomed)
        shutil.rmtree(doomed)
    return saved


def _unwrapped(values: dict[str, Any]) -> dict[str, Any]:
    """bitsandbytes keeps what belongs to 8-bit moments in a dictionary of its own; it reads it without one too."""
    inner = [value for value in values.values() if isinstance(value, dict)]
    flat = {name: value for name, value in values.items() if not isinstance(value, dict)}
    return {name: value for part in (flat, *inner) for name, value in part.items()}


def _each_by_itself(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file holds no tensor under two names, as bitsandbytes has its quantization maps."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    return found


def _unflatten(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in numbers["state"].items()}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": numbers["param_groups"]}


def _with_settings(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state with the optimizer's own settings."""
    own = optimizer.state_dict()["param_groups"]
    groups = [kept | mine | {"params": kept["params"]} for kept, mine in zip(state["param_groups"], own, strict=True)]
    return state | {"param_groups": groups}


def _in_pieces(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state cut as the weights are that it belongs to."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = piece(value, weights[index])
    return state
