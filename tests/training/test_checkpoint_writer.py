import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from bough.errors import BoughError
from bough.training import checkpoint
from bough.training.checkpoint import CheckpointWriter, checkpoints, snapshot
from tests.training.test_loop import trainer


def write(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")


def fail() -> None:
    raise BoughError("the disk is full")


def test_the_caller_goes_on_while_it_is_written_and_the_next_waits():
    may_end, done = threading.Event(), list[str]()

    def slow() -> None:
        may_end.wait(30)
        done.append("first")

    with CheckpointWriter() as writer:
        writer.begin(slow)
        writer.check()
        assert done == []
        threading.Timer(0.2, may_end.set).start()
        writer.begin(lambda: done.append("second"))
        assert done[0] == "first"
    assert done == ["first", "second"]


def test_a_failure_is_raised_once_by_whatever_comes_next():
    for ask in (CheckpointWriter.check, CheckpointWriter.wait, lambda writer: writer.begin(lambda: None)):
        writer = CheckpointWriter()
        writer.begin(fail)
        writer._thread.submit(lambda: None).result()
        with pytest.raises(BoughError, match="the disk is full"):
            ask(writer)
        writer.check()
    with pytest.raises(BoughError, match="the disk is full"), CheckpointWriter() as writer:
        writer.begin(fail)


def test_after_an_interrupt_of_the_wait_it_is_still_waited_for_in_the_end(monkeypatch: pytest.MonkeyPatch):
    """Otherwise the run's folder would be free for others while a checkpoint is written there."""
    may_end, done = threading.Event(), list[str]()

    def slow() -> None:
        may_end.wait(30)
        done.append("written")

    def interrupted(_: Future[Any]) -> None:
        monkeypatch.undo()
        may_end.set()
        raise KeyboardInterrupt

    writer = CheckpointWriter()
    writer.begin(slow)
    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt), writer:
        writer.wait()
    assert done == ["written"]


def test_an_error_that_ends_the_run_is_not_hidden(caplog: pytest.LogCaptureFixture):
    writer = CheckpointWriter()
    writer.begin(fail)
    with pytest.raises(KeyError), writer:
        raise KeyError
    assert "the disk is full" in caplog.text


def test_a_snapshot_does_not_change_and_tied_weights_stay_one():
    layer = nn.Linear(2, 2)
    copy = snapshot({"a": layer.weight, "b": layer.weight, "c": layer.bias, "none": torch.empty(0)})
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1)
    assert torch.equal(copy["a"], before) and copy["a"] is copy["b"] and copy["c"] is not copy["a"]


def test_a_checkpoint_has_the_weights_of_its_step_though_training_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first checkpoint is written only when step 2 has changed the weights."""
    held, really = threading.Event(), checkpoint.save

    def late(*arguments: Any, **more: Any) -> Any:
        assert held.wait(60)
        return really(*arguments, **more)

    monkeypatch.setattr(checkpoint, "save", late)
    slow, plain = (trainer(tmp_path / name, save_steps=1, max_steps=2) for name in ("slow", "plain"))
    slow.save = plain.save = write
    slow.optimizer.register_step_post_hook(lambda *_: held.set() if slow.counters.step == 1 else None)
    slow.train()
    monkeypatch.setattr(checkpoint, "save", really)
    plain.train()
    slow_files, plain_files = (
        [(found.path / "files.json").read_bytes() for found in checkpoints(tmp_path / name / "checkpoints")]
        for name in ("slow", "plain")
    )
    assert slow_files == plain_files and len(plain_files) == 2 and b"model.safetensors" in plain_files[0]


def test_a_full_disk_ends_the_run_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    broken = trainer(tmp_path, save_steps=1)
    monkeypatch.setattr(checkpoint, "save", lambda *_, **__: fail())
    with pytest.raises(BoughError, match="the disk is full"):
        broken.train()
    assert broken.counters.step <= 2 and not (tmp_path / "final").exists()
