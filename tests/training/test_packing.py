from pathlib import Path
from typing import Any

import pytest
import torch

from bough.config.run_folder import MetricsFile
from bough.errors import InputError
from bough.training.plan import Batch
from bough.training.step import PackedBatch
from tests.training.test_loop import trainer


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in MetricsFile.read(folder / "metrics.jsonl")]


def test_packing_ahead_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ahead, plain = trainer(tmp_path / "ahead"), trainer(tmp_path / "plain")
    ahead.train()
    monkeypatch.setattr(type(plain.source), "knows", lambda *_: False)
    plain.train()
    assert losses(tmp_path / "ahead") == losses(tmp_path / "plain") and len(losses(tmp_path / "plain")) == 4
    assert all(map(torch.equal, ahead.policy.parameters(), plain.policy.parameters()))


def test_a_batch_that_was_packed_for_another_budget_is_packed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found, budgets = trainer(tmp_path), list[int]()
    rows = found.policy.rows

    def noted(*arguments: Any, budget: int, **more: Any) -> Any:
        budgets.append(budget)
        return rows(*arguments, budget=budget, **more)

    monkeypatch.setattr(found.policy, "rows", noted)
    batch = found.packer.batch(0, 512)
    assert isinstance(batch, Batch) and not isinstance(batch, PackedBatch)
    found.counters.budget = 256  # memory ran out in step 1
    later = found.packer.batch(1, 256)
    assert isinstance(later, PackedBatch) and later.budget == 512 and budgets == [512]
    found._step(later)
    assert budgets == [512, 256]


def test_a_batch_that_cannot_be_packed_fails_at_its_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = trainer(tmp_path)
    batch = found.source.batch

    def broken(step: int) -> Any:
        if step == 1:
            raise InputError("token ids beyond the vocabulary")
        return batch(step)

    monkeypatch.setattr(found.source, "batch", broken)
    with pytest.raises(InputError, match="beyond the vocabulary"):
        found.train()
    assert found.counters.step == 1 and len(losses(tmp_path)) == 1
