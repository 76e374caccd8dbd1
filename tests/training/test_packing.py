import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.config.run_folder import MetricsFile
from bough.errors import InputError
from bough.training.plan import Batch
from bough.training.step import PackedBatch, Step
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


def test_the_next_batch_is_packed_in_another_thread_while_a_step_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A step that waits for the next one's packing comes to its end."""
    found, packed, run = trainer(tmp_path), threading.Event(), Step.run
    lay_out = Step.__init__
    threads: list[str] = []

    def laid_out(self: Step, *arguments: Any, **more: Any) -> None:
        lay_out(self, *arguments, **more)
        threads.append(threading.current_thread().name.partition("_")[0])
        packed.set()

    def computed(self: Step, *arguments: Any, **more: Any) -> Any:
        if found.source.knows(found.counters.step + 1):
            assert packed.wait(60)
        packed.clear()
        return run(self, *arguments, **more)

    monkeypatch.setattr(Step, "__init__", laid_out)
    monkeypatch.setattr(Step, "run", computed)
    packed.clear()
    found.train()
    # The first batch of an epoch is not certain before the epoch begins.
    assert sorted(threads) == ["MainThread", "MainThread", "packing", "packing"]


def test_beside_a_gpu_the_next_batch_is_packed_when_all_of_a_step_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In order: the step's rows, its update, the packing of the next one, and only then the loss is read."""
    adamw = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, lr, fused: adamw(groups, lr=lr, fused=True))
    found, plain = trainer(tmp_path / "gpu"), trainer(tmp_path / "plain")
    plain.updater.guarded = False
    plain.train()
    assert found.updater.guarded
    found.packer.after_launch = True
    events: list[str] = []

    def noted(name: str, owner: Any, method: str) -> None:
        real = getattr(owner, method)

        def call(*arguments: Any, **more: Any) -> Any:
            events.append(name)
            return real(*arguments, **more)

        monkeypatch.setattr(owner, method, call)

    noted("rows", found.gradients, "_within_memory")
    noted("update", found.updater.optimizer, "step")
    noted("packing", found.packer._thread, "submit")
    noted("read", found.gradients, "read")
    found.train()
    # The first batch of an epoch is not certain before the epoch begins.
    assert events == [*("rows", "update", "packing", "read"), *("rows", "update", "read")] * 2
    assert losses(tmp_path / "gpu") == losses(tmp_path / "plain")
    assert all(map(torch.equal, found.policy.parameters(), plain.policy.parameters()))


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
