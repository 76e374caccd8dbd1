"""When the local engine samples while the policy trains."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bough.online import sampler
from bough.online.sampler import _collides


@pytest.mark.parametrize(("device", "waits"), [("cpu", False), ("cuda", True)])
def test_on_a_gpu_the_sampler_waits_and_says_so(device: str, waits: bool, caplog: pytest.LogCaptureFixture):
    policy: Any = SimpleNamespace(device=torch.device(device))
    assert _collides(policy) is waits
    assert ("The sampler waits while the policy trains" in caplog.text) is waits


def test_one_line_lets_the_sampler_and_the_trainer_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sampler, "OVERLAPS_ON_CUDA", True)
    policy: Any = SimpleNamespace(device=torch.device("cuda"))
    assert not _collides(policy) and not caplog.text
