import json
import logging
import math
import resource
import shutil
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bough.errors import BoughError, InputError
from bough.files import write_json
from bough.models.resolve import file_digest
from bough.training import checkpoint
from bough.training.checkpoint import CheckpointWriter, Counters, OptimizerState, checkpoints, snapshot
from tests.training.test_loop import trainer

FILES = ["weights/model.safetensors", "weights/config.json", "optimizer.safetensors", "random.safetensors"]
FILES += ["state.json", "files.json"]


def trained(steps: int, resume: checkpoint.Checkpoint | None = None, folder: Path | None = None) -> nn.Linear:
    """A few steps with dropout noise, saved after each where a folder is given."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    first = 0
    if resume:
        first = resume.restore(optimizer).step
        model.load_state_dict(load_file(resume.weights / "model.safetensors"))
    for step in range(first, steps):
        loss = model(torch.randn(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if folder:
            save(folder, step + 1, model, optimizer)
    return model


def save(
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, processes: int = 1, keep: int = 2
) -> checkpoint.Checkpoint:
    def weights(path: Path) -> None:
        path.mkdir()
        save_file(model.state_dict(), path / "model.safetensors")
        (path / "config.json").write_text('{"r": 8}')

    randomness = [checkpoint.random_state() for _ in range(processes)]
    return checkpoint.save(folder, weights, OptimizerState.of(optimizer), randomness, Counters(step=step), keep=keep)


def fresh() -> torch.optim.Optimizer:
    return torch.optim.AdamW(nn.Linear(3, 2).parameters(), lr=0.1)


def test_a_restored_run_is_bit_identical_to_one_that_was_never_stopped(tmp_path: Path):
    trained(4, folder=tmp_path)
    resumed = trained(9, resume=checkpoint.checkpoints(tmp_path)[-1])
    assert torch.equal(resumed.weight, trained(9).weight)


def test_only_the_newest_are_kept(tmp_path: Path):
    trained(5, folder=tmp_path)
    assert [found.step for found in checkpoint.checkpoints(tmp_path)] == [4, 5]


def test_a_draft_of_a_killed_process_is_no_checkpoint_and_is_swept_away(tmp_path: Path):
    trained(1, folder=tmp_path)
    (tmp_path / ".step-00000002" / "weights").mkdir(parents=True)
    assert [found.step for found in checkpoint.checkpoints(tmp_path)] == [1]
    trained(3, resume=checkpoint.checkpoints(tmp_path)[-1], folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_the_optimizers_settings_are_those_of_now_and_its_moments_those_of_the_checkpoint(tmp_path: Path):
    weight = nn.Parameter(torch.ones(2, 2))
    before = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.01)
    weight.square().sum().backward()
    before.step()
    save(tmp_path, 1, nn.Linear(1, 1), before)
    now = torch.optim.AdamW([nn.Parameter(torch.ones(2, 2))], lr=0.2, weight_decay=0.5)
    checkpoint.checkpoints(tmp_path)[0].restore(now)
    (group,) = now.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.2, 0.5)
    assert torch.equal(now.state[group["params"][0]]["exp_avg"], before.state[weight]["exp_avg"])


def test_a_disk_that_is_full_costs_the_new_checkpoint_only(tmp_path: Path):
    trained(1, folder=tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The random state has 5,056 bytes: the checkpoint fails half-way, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(BoughError, match=r"step-00000002: cannot be written: ") as caught:
            save(tmp_path, 2, nn.Linear(3, 2), fresh())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not isinstance(caught.value, InputError)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    checkpoint.checkpoints(tmp_path)[0].check()


def test_every_process_gets_its_own_random_state_back(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    states, drawn = [], []
    for rank in range(2):
        torch.manual_seed(rank)
        states.append(checkpoint.random_state())
        drawn.append(torch.rand(3))
    optimizer = fresh()
    saved = checkpoint.save(tmp_path, Path.mkdir, OptimizerState.of(optimizer), states, Counters(step=1), keep=1)
    for rank in range(2):
        saved.restore(optimizer, rank=rank, count=2)
        assert torch.equal(torch.rand(3), drawn[rank])
    assert "processes" not in caplog.text


def test_another_number_of_processes_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    saved = save(tmp_path, 1, nn.Linear(3, 2), fresh(), processes=2)
    with caplog.at_level(logging.WARNING):
        saved.restore(fresh(), rank=2, count=3)
        assert caplog.text == ""  # one of them says it for all
        saved.restore(fresh(), rank=0, count=3)
    assert "saved by 2 processes and 3 resume from it" in caplog.text


def test_another_optimizer_is_refused(tmp_path: Path):
    saved = save(tmp_path, 1, nn.Linear(3, 2), fresh())
    with pytest.raises(InputError, match="saved with the optimizer AdamW; a run keeps its --optimizer"):
        saved.restore(torch.optim.SGD(nn.Linear(3, 2).parameters()))


class Nested(torch.optim.SGD):
    """As bitsandbytes' optimizers: a map that all weights share, in a dictionary beside the other state."""

    MAP = torch.arange(4.0)

    def state_dict(self):
        moments = {i: {"step": 3, "inner": {"map": self.MAP, "state": torch.full((2,), float(i))}} for i in range(2)}
        return {"state": moments, "param_groups": super().state_dict()["param_groups"]}

    def load_state_dict(self, state_dict):
        self.loaded = state_dict["state"]


def test_8_bit_state_is_kept_and_found_again(tmp_path: Path):
    optimizer = Nested([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))], lr=0.1)
    save(tmp_path, 1, nn.Linear(1, 1), optimizer)
    checkpoint.checkpoints(tmp_path)[0].restore(optimizer)
    for i, found in optimizer.loaded.items():
        assert found["step"] == 3
        assert torch.equal(found["map"], Nested.MAP)
        assert found["state"].tolist() == [i, i]
    assert sorted(optimizer.loaded) == [0, 1]


# What can happen to a file, and what can be wrong inside one.


def remove(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def garble(file: Path) -> None:
    file.write_bytes(b"\xff\x00garbage" * 20)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\n")


def huge_header(file: Path) -> None:
    file.write_bytes(struct.pack("<Q", 2**60) + file.read_bytes()[8:])


def huge_tensor(file: Path) -> None:
    header = json.dumps({"0.exp_avg": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))


def tensors(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        found = load_file(file)
        change(found)
        save_file({name: value.contiguous() for name, value in found.items()}, file)

    return damage


def numbers(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        found = json.loads(file.read_text())
        found = change(found) or found
        file.write_text(json.dumps(found))

    return damage


def counter(**values: Any) -> Callable[[Path], None]:
    return numbers(lambda state: state["counters"].update(values))


NAN = float("nan")
DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    *((file, kind) for file in FILES for kind in (remove, empty, truncate, garble, flip, replace_by_folder)),
    *((file, lengthen) for file in FILES[:-1]),
]
# These must be found by themselves too, where the list of files has been written again.
INSIDE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a header of 2^60 bytes": ("optimizer.safetensors", huge_header),
    "a tensor of 2^62 bytes": ("optimizer.safetensors", huge_tensor),
    "moments of another shape": (
        "optimizer.safetensors", tensors(lambda found: found.update({"0.exp_avg": torch.zeros(5)})),
    ),
    "moments of another type": (
        "optimizer.safetensors", tensors(lambda found: found.update({"0.exp_avg": found["0.exp_avg"].half()})),
    ),
    "moments that are not finite": (
        "optimizer.safetensors", tensors(lambda found: found["1.exp_avg_sq"].fill_(NAN)),
    ),
    "moments of a weight that is not there": (
        "optimizer.safetensors", tensors(lambda found: found.update({"7.exp_avg": torch.zeros(2, 3)})),
    ),
    "moments without a number": (
        "optimizer.safetensors", tensors(lambda found: found.update({"first": torch.zeros(2)})),
    ),
    "truncated moments": ("optimizer.safetensors", truncate),
    "a random state that is too short": (
        "random.safetensors", tensors(lambda found: found.update({"cpu.0": found["cpu.0"][:-8]})),
    ),
    "a random state of another type": (
        "random.safetensors", tensors(lambda found: found.update({"cpu.0": torch.zeros(3)})),
    ),
    "no random state": ("random.safetensors", tensors(lambda found: found.update({"x": found.pop("cpu.0")}))),
    "a list for the state": ("state.json", numbers(lambda state: [state])),
    "a text for the state": ("state.json", numbers(lambda state: "state")),
    "deep nesting": ("state.json", lambda file: file.write_text("[" * 100_000)),
    "no counters": ("state.json", numbers(lambda state: state.pop("counters") and None)),
    "no optimizer": ("state.json", numbers(lambda state: state.pop("optimizer") and None)),
    "no number of processes": ("state.json", numbers(lambda state: state.pop("processes") and None)),
    "a negative number of processes": ("state.json", numbers(lambda state: state | {"processes": -1})),
    "too many processes": ("state.json", numbers(lambda state: state | {"processes": 10**9})),
    "a list for the optimizer": ("state.json", numbers(lambda state: state | {"optimizer": []})),
    "no groups": ("state.json", numbers(lambda state: state["optimizer"].update({"param_groups": []}))),
    "groups of other weights": (
        "state.json", numbers(lambda state: state["optimizer"]["param_groups"][0].update({"params": [0, 1, 2]})),
    ),
    "a group that is a number": ("state.json", numbers(lambda state: state["optimizer"].update({"param_groups": [3]}))),
    "moments as text": (
        "state.json", numbers(lambda state: state["optimizer"].update({"state": {"0": {"exp_avg": "x"}, "9": {}}})),
    ),
    "a negative step": ("state.json", counter(step=-2)),
    "another step": ("state.json", counter(step=1)),
    "a step as text": ("state.json", counter(step="2")),
    "a step that is not finite": ("state.json", counter(step=NAN)),
    "levels that are no list": ("state.json", counter(levels=3)),
    "a negative level": ("state.json", counter(levels=[0, -4])),
    "no level": ("state.json", counter(levels=[])),
    "an unknown counter": ("state.json", counter(unknown=1)),
    "a best loss that is not finite": ("state.json", counter(best_loss=NAN)),
    "a missing counter": ("state.json", numbers(lambda state: state["counters"].pop("tokens_raw") and None)),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("checkpoints")
    trained(2, folder=folder)
    return folder


@pytest.fixture
def newest(saved: Path, tmp_path: Path) -> checkpoint.Checkpoint:
    shutil.copytree(saved, tmp_path / "checkpoints")
    return checkpoint.checkpoints(tmp_path / "checkpoints")[-1]


def refused(newest: checkpoint.Checkpoint, what: Callable[[], Any]) -> str:
    """What is said about a checkpoint that cannot be used: it names it, and the one to resume from instead."""
    with pytest.raises(InputError) as raised:
        what()
    said = str(raised.value)
    assert said.startswith(f"{newest.path} is damaged: ")
    assert f"--resume starts from step 1 ({newest.path.parent / 'step-00000001'})" in said
    return said


@pytest.mark.parametrize(("file", "damage"), DAMAGES, ids=[f"{file}, {damage.__name__}" for file, damage in DAMAGES])
def test_damage_to_a_file_is_found_before_anything_is_loaded(
    newest: checkpoint.Checkpoint, file: str, damage: Callable[[Path], None]
):
    damage(newest.path / file)
    assert Path(file).name in refused(newest, newest.check)


@pytest.mark.parametrize(("file", "damage"), INSIDE.values(), ids=INSIDE)
def test_a_state_that_cannot_be_is_found_by_its_digest_and_by_itself(
    newest: checkpoint.Checkpoint, file: str, damage: Callable[[Path], None]
):
    damage(newest.path / file)
    assert file in refused(newest, newest.check)
    listed = json.loads((newest.path / "files.json").read_text())
    listed[file] = {"bytes": (newest.path / file).stat().st_size, "sha256": file_digest(newest.path / file)}
    write_json(newest.path / "files.json", listed)
    newest.check()
    refused(newest, lambda: newest.restore(fresh()))


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "3",
        '"text"',
        "{}",
        '{"state.json": 3}',
        '{"state.json": {"bytes": Infinity, "sha256": ""}}',
        "[" * 100_000,
    ],
    ids=lambda content: content[:40],
)
def test_a_list_of_files_that_is_none_is_said(newest: checkpoint.Checkpoint, content: str):
    (newest.path / "files.json").write_text(content)
    assert "files.json" in refused(newest, newest.check)


def test_a_weights_file_that_is_not_listed_is_not_loaded(newest: checkpoint.Checkpoint):
    listed = json.loads((newest.path / "files.json").read_text())
    del listed["weights/config.json"]
    write_json(newest.path / "files.json", listed)
    assert "files.json does not list weights/config.json" in refused(newest, newest.check)


def test_a_huge_list_of_files_is_not_read(newest: checkpoint.Checkpoint):
    with (newest.path / "files.json").open("r+b") as file:
        file.truncate(2**40)  # sparse: reading it would fill any memory
    assert f"files.json is not a list of files: it has {2**40} bytes" in refused(newest, newest.check)


def test_a_checkpoint_that_is_a_file_or_an_empty_folder_is_said(newest: checkpoint.Checkpoint):
    shutil.rmtree(newest.path)
    newest.path.mkdir()
    assert "files.json" in refused(newest, newest.check)
    newest.path.rmdir()
    newest.path.write_text("")
    assert "files.json" in refused(newest, newest.check)


def test_where_there_is_no_earlier_checkpoint_the_run_starts_from_the_beginning(newest: checkpoint.Checkpoint):
    shutil.rmtree(newest.path.parent / "step-00000001")
    (newest.path / "state.json").unlink()
    with pytest.raises(InputError, match="--resume starts from the beginning"):
        newest.check()


@pytest.mark.parametrize("name", ["step-00000001", ".step-00000001", ".step-00000009"])
def test_a_link_in_the_place_of_a_checkpoint_is_removed_and_its_target_stays(tmp_path: Path, name: str):
    folder, mine = tmp_path / "checkpoints", tmp_path / "mine"
    for path in (folder, mine):
        path.mkdir()
    (mine / "precious").write_text("mine")
    (folder / name).symlink_to(mine)
    model = nn.Linear(3, 2)
    for step in (2, 3):
        save(folder, step, model, torch.optim.AdamW(model.parameters()))
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003"]
    assert [path.name for path in mine.iterdir()] == ["precious"]


FULL = Counters(step=3, best_loss=1.5, levels=[0, 1])


def test_counters_are_read_back_as_they_were():
    assert Counters.from_json(asdict(FULL)) == FULL
    assert Counters.from_json(asdict(FULL) | {"overflows": 1}) == FULL


def test_only_a_finite_loss_below_the_best_resets_the_count_of_evaluations_without_gain():
    counters = Counters()
    assert [counters.count_evaluation(loss) for loss in (2.0, 2.0, math.nan, 1.5, math.inf)] == [
        True, False, False, True, False
    ]  # fmt: skip
    assert (counters.best_loss, counters.evaluations_without_gain) == (1.5, 1)


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
