"""Pieces of weights; that processes train together what one trains is shown in tests/training/test_processes.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from bough.policy.processes import gather, most, piece, shard, whole


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of one process, whose pieces are whole."""
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(ids)))


@pytest.mark.usefixtures("group")
def test_every_weight_becomes_a_piece_and_comes_back_whole():
    model = Tied()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shard(model, [model.layer], torch.device("cpu"))
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    found = gather(model.state_dict(keep_vars=True))
    assert found.keys() == before.keys()
    assert all(
        torch.equal(found[name], value) and not isinstance(found[name], DTensor) for name, value in before.items()
    )
    assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()


@pytest.mark.usefixtures("group")
def test_a_whole_tensor_is_cut_as_its_weight_is_and_anything_else_left_alone():
    model = Tied()
    shard(model, [], torch.device("cpu"))
    weight, moment = model.layer.weight, torch.randn(3, 3)
    cut = piece(moment, weight)
    assert isinstance(cut, DTensor) and cut.placements == weight.placements
    assert torch.equal(whole(cut), moment)
    count = torch.tensor(4.0)
    assert piece(count, weight) is count
    assert piece(moment, torch.zeros(3, 3)) is moment
    assert most(7, torch.device("cpu")) == 7
