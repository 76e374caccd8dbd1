"""A node of a cluster works in the folder of a sweep only if it sees its files and its lock."""

from dataclasses import replace
from pathlib import Path

import pytest

from bough.experiments.run import LOCK
from bough.experiments.sweep_processes import RunWorker
from bough.files import locked
from bough.rollouts.ray_workers import Surroundings, shared_token


def test_a_node_that_sees_the_files_and_the_lock_can_play_and_others_say_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):  # which a worker sets for itself
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.chdir(tmp_path)
    here = Surroundings.here()
    with shared_token(tmp_path) as token:
        assert "locks in" in str(RunWorker(here, token).start())  # this process does not hold it, so it can be taken
        with locked(tmp_path / LOCK, wait=False):
            assert RunWorker(here, token).start() is None
            assert "does not see the files" in str(RunWorker(here, tmp_path / "elsewhere" / "token").start())
            assert "has no folder" in str(RunWorker(replace(here, folder=str(tmp_path / "none")), token).start())
            assert "it has Bough" in str(RunWorker(replace(here, version="0.0.1"), token).start())
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
