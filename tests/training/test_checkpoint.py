from pathlib import Path

import pytest
import torch
from torch import nn

from bough.errors import InputError
from bough.training import checkpoint


def trained(steps: int, resume: checkpoint.Checkpoint | None = None, folder: Path | None = None) -> nn.Linear:
    """A few steps with dropout noise, saved after each where a folder is given."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    first = 0
    if resume:
        first = resume.restore(optimizer)["step"]
        model.load_state_dict(torch.load(resume.weights / "w.pt", weights_only=True))
    for step in range(first, steps):
        loss = model(torch.randn(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if folder:
            save(folder, step + 1, model, optimizer)
    return model


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int = 2) -> None:
    def weights(path: Path) -> None:
        path.mkdir()
        torch.save(model.state_dict(), path / "w.pt")

    checkpoint.save(folder, step, weights, checkpoint.OptimizerState.of(optimizer), {"step": step}, keep=keep)


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


def test_a_checkpoint_that_is_none_is_an_input_error(tmp_path: Path):
    folder = tmp_path / "step-00000003"
    folder.mkdir()
    (folder / "state.json").write_text("{")
    with pytest.raises(InputError, match="not a checkpoint of this run"):
        checkpoint.Checkpoint(folder).restore(torch.optim.AdamW([nn.Parameter(torch.zeros(1))]))


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


def test_no_pickle_is_written(tmp_path: Path):
    trained(1, folder=tmp_path)
    names = {path.name for path in (tmp_path / "step-00000001").iterdir()}
    assert names == {"weights", "optimizer.safetensors", "random.safetensors", "state.json"}


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
