"""Items of different sizes, dealt out so that processes end together."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from bough.errors import BoughError, InputError
from bough.policy.processes import deal, gather, most, packed_error, piece, shard, unused_bytes, unused_fraction, whole
from bough.training.plan import PausedError
from tests.policy.gpu import GIB, pretend


@given(st.lists(st.integers(0, 100)), st.integers(1, 5))
def test_every_item_is_in_one_share_and_no_share_is_larger_by_more_than_one_item(sizes: list[int], count: int):
    shares = deal(sizes, count)
    assert sorted(i for share in shares for i in share) == list(range(len(sizes)))
    loads = [sum(sizes[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("free", "part", "reserved", "expected"),
    [(60, 1.0, 0, 60), (60, 0.25, 0, 20), (60, 0.25, 15, 5), (60, 0.25, 30, 0), (10, 0.25, 0, 10)],
)
def test_it_is_what_is_free_and_within_the_part_of_this_process(
    monkeypatch: pytest.MonkeyPatch, free: float, part: float, reserved: float, expected: float
):
    pretend(monkeypatch, free=free, part=part, reserved=reserved)
    assert unused_bytes(GPU) == expected * GIB


def test_processes_share_what_is_free_and_a_fraction_is_of_the_whole_gpu(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, free=60)
    assert unused_bytes(GPU, processes=4) == 15 * GIB
    pretend(monkeypatch, free=60, part=0.25)
    assert unused_fraction(GPU) == 0.25 and unused_fraction(GPU, keep=4 * GIB) == 0.2


class StubbornError(Exception):
    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"{what} {number}")


class RoomError(StubbornError, BoughError):
    exit_code = 7


@pytest.mark.parametrize(
    "error",
    [
        InputError("settings:", ["a", "b"], hint="c"),
        PausedError("paused"),
        KeyboardInterrupt(),
        OSError(28, "full"),
    ],
)
def test_an_error_arrives_as_it_is(error: BaseException):
    value, received = pickle.loads(packed_error(error))
    assert value is None
    assert type(received) is type(error) and str(received) == str(error)


@pytest.mark.parametrize(("kind", "said"), [(StubbornError, ("StubbornError: room 3", 1)), (RoomError, ("room 3", 7))])
def test_an_error_that_cannot_be_pickled_arrives_as_its_text(kind: type[Exception], said: tuple[str, int]):
    _, received = pickle.loads(packed_error(kind(3, "room")))
    assert type(received) is BoughError and (str(received), received.exit_code) == said


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
