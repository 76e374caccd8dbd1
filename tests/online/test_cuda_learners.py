"""Two learners on one GPU, where there is one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.online.test_source import LETTERS, assert_same
from tests.training.pair import told

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def run(program: list[str], folder: Path, *more: str) -> str:
    command = [sys.executable, *program, *LETTERS, *more, "--no-bf16", "--output-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="needs exactly one CUDA device")
def test_learners_that_share_a_gpu_use_gloo_and_train_what_one_does(tmp_path: Path):
    run(["-m", "bough"], tmp_path / "one")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bough"]
    said = run(torchrun, tmp_path / "two")
    assert "2 processes share 1 GPU: they communicate through gloo" in said
    assert_same(tmp_path / "one", tmp_path / "two")
    assert told(tmp_path / "two", "step") == [1, 2]


@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="needs exactly one CUDA device")
def test_weights_cannot_be_sharded_over_one_gpu(tmp_path: Path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bough"]
    command = [*torchrun, *LETTERS, "--shard", "--output-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "--shard needs a GPU for each process" in done.stderr
