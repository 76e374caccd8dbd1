"""Folders of members with small adapters, made without a model."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bough.experiments.generation import OPTIMIZER, Individual
from bough.files import write_json
from bough.policy.adapters import AdapterWeights

PREFIX = "base_model.model.layer.q_proj"


def adapter(folder: Path, seed: int, rank: int = 2, alpha: int = 4, **described: Any) -> AdapterWeights:
    """A member's folder with an adapter on one layer of 6 inputs and 5 outputs, after three updates."""
    generator = torch.Generator().manual_seed(seed)
    down, up = (torch.randn(shape, generator=generator) for shape in ((rank, 6), (5, rank)))
    folder.mkdir()
    save_file({f"{PREFIX}.lora_A.weight": down, f"{PREFIX}.lora_B.weight": up}, folder / "adapter_model.safetensors")
    write_json(folder / "adapter_config.json", {"peft_type": "LORA", "r": rank, "lora_alpha": alpha})
    moments = {
        f"{index}.{name}": value.abs() for index, value in enumerate((down, up)) for name in ("exp_avg", "exp_avg_sq")
    }
    save_file(moments | {"0.step": torch.tensor(3.0)}, folder / OPTIMIZER)
    Individual(folder.name, rank=rank, step=3, optimizer={"kind": "AdamW"}, **described).write(folder)
    return AdapterWeights.read(folder)
