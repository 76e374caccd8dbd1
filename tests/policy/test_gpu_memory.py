"""One place answers how much memory a process may still take."""

import pytest
import torch

from bough.policy.processes import unused_bytes, unused_fraction
from tests.policy.gpu import GIB, pretend

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


def test_processes_of_a_run_share_what_is_free(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, free=60)
    assert unused_bytes(GPU, processes=4) == 15 * GIB


def test_a_fraction_is_of_the_whole_gpu(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, free=60, part=0.25)
    assert unused_fraction(GPU) == 0.25
    assert unused_fraction(GPU, keep=4 * GIB) == 0.2
