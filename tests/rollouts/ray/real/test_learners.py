"""Learners under Ray Train, and a worker that plays for them, on three nodes."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bough.cli import main
from bough.methods.grpo import GRPOConfig, learn_online
from bough.online.source import SharedSource
from bough.training.checkpoint import checkpoints
from bough.training.plan import Batch
from bough.training.run import Trained
from tests.online.test_source import LETTERS, assert_same
from tests.rollouts.ray.real.clusters import started
from tests.training.pair import alone

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def flags() -> Iterator[list[str]]:
    """A cluster with a CPU on each of three nodes: for two learners, and for the worker that plays."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    with started(3) as made:
        yield ["--cluster", made.address, "--learners", "2", "--workers", "1"]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    torch.set_num_threads(1)
    alone(LETTERS, folder)
    return folder


def test_two_learners_train_what_one_process_trains(
    tmp_path: Path, one: Path, flags: list[str], capfd: pytest.CaptureFixture[str]
):
    assert main([*LETTERS, *flags, "--output-dir", str(tmp_path)]) == 0
    said = capfd.readouterr()
    assert "2 learners with 1 CPU each" in said.err
    assert "step 1  loss" in said.err, "the first learner's progress"
    assert said.out.count("weights in") == 1
    assert_same(one, tmp_path)
    assert not list(tmp_path.glob(".token-*"))


def die_at_step_two(config: GRPOConfig) -> Trained:
    """A learner; the second one is killed before it learns from the second batch."""
    take = SharedSource.batch

    def batch(self: SharedSource, step: int) -> Batch | None:
        if step == 1 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, step)

    SharedSource.batch = batch  # type: ignore[method-assign]
    return learn_online(config)


def test_a_learner_that_is_killed_is_named_and_one_process_resumes_the_run(
    tmp_path: Path, one: Path, flags: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bough.methods.grpo.learn_online", die_at_step_two)
    assert main([*LETTERS, *flags, "--output-dir", str(tmp_path)]) == 1
    monkeypatch.undo()
    said = capfd.readouterr().err
    assert "Error: learner 2 of 2 has died" in said and "--resume continues the run" in said
    assert [checkpoint.step for checkpoint in checkpoints(tmp_path / "checkpoints")] == [1]
    alone([*LETTERS, "--resume"], tmp_path)
    assert_same(one, tmp_path)
