from pathlib import Path

import pytest
import torch

from bough.errors import InputError
from bough.experiments.members import _population
from bough.methods.sft import SFTConfig
from tests.policy.families import make


@pytest.mark.parametrize("checkpointing", [False, True])
def test_with_gradient_checkpointing_on_a_cpu_freed_memory_goes_back_to_the_system(
    monkeypatch: pytest.MonkeyPatch, checkpointing: bool
):
    asked: list[bool] = []
    monkeypatch.setattr("bough.experiments.members.return_freed_memory", lambda: asked.append(True))
    config = SFTConfig(train_file=Path("a"), model="tiny", gradient_checkpointing=checkpointing)
    population = _population(config, torch.device("cpu"))
    assert population.policy.row_reader.recomputed is checkpointing is bool(asked)


def test_a_load_balancing_loss_that_would_be_left_out_is_refused(tmp_path: Path):
    make("mixtral").save_pretrained(tmp_path)  # its config asks for one
    settings = {"train_file": Path("a.jsonl"), "model": str(tmp_path), "token_budget": 512}
    with pytest.raises(InputError, match=r"router_aux_loss_coef is 0\.001, .*: --set router_aux_loss_coef=0"):
        _population(SFTConfig(**settings), torch.device("cpu"))
    assert _population(SFTConfig(**settings, router_aux_loss_coef=0.0), torch.device("cpu")).policy.routers
