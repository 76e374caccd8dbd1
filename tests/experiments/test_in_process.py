from pathlib import Path

import pytest
import torch

from bough.experiments.members import _population
from bough.methods.sft import SFTConfig


@pytest.mark.parametrize("checkpointing", [False, True])
def test_with_gradient_checkpointing_on_a_cpu_freed_memory_goes_back_to_the_system(
    monkeypatch: pytest.MonkeyPatch, checkpointing: bool
):
    asked: list[bool] = []
    monkeypatch.setattr("bough.experiments.members.return_freed_memory", lambda: asked.append(True))
    config = SFTConfig(train_file=Path("a"), model="tiny", gradient_checkpointing=checkpointing)
    population = _population(config, torch.device("cpu"))
    assert population.policy.row_reader.recomputed is checkpointing is bool(asked)
