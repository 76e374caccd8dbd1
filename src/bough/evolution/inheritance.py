"""What a child inherits, as files: adapter and moments of its parent, copied, grown in rank, or merged with another's.

Nothing here needs a model in memory.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bough.digest import derived_seed
from bough.disk import read_json, write_json
from bough.errors import InputError
from bough.evolution.crossover import How, merged
from bough.evolution.individual import OPTIMIZER, Individual
from bough.policy.adapter_weights import CONFIG, TENSORS, AdapterWeights

FIRST_MOMENT = "exp_avg"
# With any of these an adapter has another scale or rank than lora_alpha and r say.
ODD = ("use_rslora", "rank_pattern", "alpha_pattern")


def check_plain(start: Path) -> None:
    """InputError for an adapter that cannot be grown or merged."""
    config = read_json(start / CONFIG)
    if odd := [name for name in ODD if config.get(name)]:
        raise InputError(
            f"{start}: an adapter with {', '.join(odd)} cannot be grown or merged; "
            "leave out rank_mutation and crossover, or merge it into the model first"
        )


def copy(parent: Path, child: Path) -> None:
    """The member's files as they are, bit for bit."""
    shutil.copytree(parent, child)


def bear(parent: Path, child: Path, born: Individual) -> None:
    """A child with its parent's adapter and moments, described as `born`; its rank grows to what that says."""
    before = Individual.read(parent)
    copy(parent, child)
    born = replace(born, step=before.step, optimizer=before.optimizer)
    if born.rank > before.rank:
        _grow(child, before.rank, born.rank, derived_seed(0, born.name))
    born.write(child)


def cross(parent: Path, other: Path, child: Path, born: Individual, how: How) -> None:
    """A child with the merged adapter of two parents.

    The factors of a merged adapter are new, so no moments belong to them: its optimizer starts without.
    DivergedError, and no child, where the weights of a parent are too large to be merged.
    """
    weights = merged(AdapterWeights.read(parent).layers, AdapterWeights.read(other).layers, how)
    before = Individual.read(parent)
    copy(parent, child)
    (child / OPTIMIZER).unlink(missing_ok=True)
    config = read_json(child / CONFIG)
    scale = config["lora_alpha"] / config["r"]
    save_file(
        {
            f"base_model.model.{layer}.lora_{side}.weight": tensor.contiguous()
            for layer, (down, up) in weights.items()
            for side, tensor in (("A", down), ("B", up / scale))
        },
        child / TENSORS,
    )
    replace(born, step=before.step, optimizer={}).write(child)


def _grow(folder: Path, rank: int, wanted: int, seed: int) -> None:
    """The adapter with a larger rank, computing the same: new rows of A are drawn, new columns of B are 0.

    alpha grows with the rank, so the scale stays and the moments stay valid.
    """
    config: dict[str, Any] = read_json(folder / CONFIG)
    assert config["r"] == rank and wanted % rank == 0, (config["r"], rank, wanted)
    config |= {"r": wanted, "lora_alpha": config["lora_alpha"] * wanted // rank}
    write_json(folder / CONFIG, config)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(folder / TENSORS)
    for name in sorted(tensors):
        new = wanted - rank
        if ".lora_A." in name:
            bound = 1 / math.sqrt(tensors[name].shape[1])  # as peft draws a new adapter
            drawn = torch.empty(new, tensors[name].shape[1]).uniform_(-bound, bound, generator=generator)
            tensors[name] = torch.cat([tensors[name], drawn.to(tensors[name].dtype)])
        else:
            tensors[name] = torch.nn.functional.pad(tensors[name], (0, new))
    save_file(tensors, folder / TENSORS)
    if (folder / OPTIMIZER).exists():
        moments = load_file(folder / OPTIMIZER)
        save_file({name: _grown(name, value, wanted - rank) for name, value in moments.items()}, folder / OPTIMIZER)


def _grown(name: str, value: Tensor, new: int) -> Tensor:
    """A moment of a weight that has grown. The optimizer has both matrices of each layer in turn, A first.

    First moments of new entries are 0. Second moments are the mean of the others: with 0 the first
    updates of new entries would be several times too large.
    """
    if value.dim() < 2:  # the number of steps
        return value
    index, _, kind = name.partition(".")
    fill = 0.0 if kind == FIRST_MOMENT else float(value.mean())
    pad = (0, 0, 0, new) if int(index) % 2 == 0 else (0, new)
    return torch.nn.functional.pad(value, pad, value=fill).contiguous()
