"""Two processes train what one trains, each with all weights or with half of every weight."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bough.cli import main
from bough.training.checkpoint import checkpoints
from bough.training.metrics_file import MetricsFile

ROOT = Path(__file__).parents[2]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bough"]
SFT = ["sft", "--train-file", str(ROOT / "examples" / "household.jsonl"), "--model", "tiny", "--batch-size", "3"]
DPO = ["dpo", "--train-file", str(ROOT / "examples" / "household-pairs.jsonl"), "--model", "tiny", "--batch-size", "5"]
FULL = [*SFT, "--no-use-lora", "--learning-rate", "1e-3", "--token-budget", "1024"]
LORA = [*DPO, "--learning-rate", "1e-2"]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def start(arguments: list[str], run: Path, launcher: list[str] | None = None) -> subprocess.Popen[str]:
    """Two processes in a session of their own, so that they can be killed together."""
    return subprocess.Popen(
        [sys.executable, "-m", *(launcher or forked()), *arguments, "--output-dir", str(run)],
        cwd=ROOT,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def forked() -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return ["tests.stages.two_processes", str(free.getsockname()[1])]


def train(arguments: list[str], run: Path, processes: int, launcher: list[str] | None = None) -> None:
    if processes == 1:
        assert main([*arguments, "--output-dir", str(run)]) == 0
        return
    started = start(arguments, run, launcher)
    _, said = started.communicate()
    assert started.returncode == 0, said[-3000:]


def told(run: Path, name: str) -> list[Any]:
    return [line[name] for line in MetricsFile.read(run / "metrics.jsonl") if name in line]


def assert_same(one: Path, two: Path) -> None:
    for name in ("loss", "eval_loss", "grad_norm"):
        assert told(one, name) == pytest.approx(told(two, name), rel=1e-4)
    trained = [json.loads((run / "report.json").read_text())["tokens_trained"] for run in (one, two)]
    assert trained[0] == trained[1]
    (file,) = (one / "final").glob("*.safetensors")
    weights = [load_file(run / "final" / file.name) for run in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        # Adam takes a gradient of hardly anything for a direction: a hundredth of a step is noise.
        assert (weight - weights[1][name]).abs().max() < 1e-4, name


@pytest.mark.parametrize(
    ("alone", "together", "launcher"),
    [
        (LORA, [], TORCHRUN),
        ([*FULL, "--eval-file", str(ROOT / "examples" / "household.jsonl")], ["--shard"], None),
        # Pairs larger than a row, which are computed twice, and activations that are.
        ([*LORA, "--token-budget", "384", "--gradient-checkpointing"], ["--shard"], None),
        ([*LORA, "--no-use-lora", "--learning-rate", "1e-3"], ["--shard"], None),
    ],
    ids=["dpo with whole weights", "sft of sharded weights", "dpo with a sharded adapter", "dpo of sharded weights"],
)
def test_two_processes_train_what_one_does(
    tmp_path: Path, alone: list[str], together: list[str], launcher: list[str] | None
):
    alone = [*alone, "--max-steps", "3", "--save-steps", "1"]
    train(alone, tmp_path / "one", processes=1)
    train([*alone, *together], tmp_path / "two", 2, launcher)
    assert_same(tmp_path / "one", tmp_path / "two")
    if not together:  # what pairs of two processes have in common is computed by both: there were two
        assert told(tmp_path / "two", "tokens_computed")[-1] > told(tmp_path / "one", "tokens_computed")[-1]


def test_a_reference_adapter_is_sharded_too(tmp_path: Path):
    train([*SFT, "--max-steps", "2", "--learning-rate", "1e-2"], tmp_path / "sft", processes=1)
    arguments = [*LORA, "--model", str(tmp_path / "sft" / "final"), "--max-steps", "2"]
    train(arguments, tmp_path / "one", processes=1)
    train([*arguments, "--shard"], tmp_path / "two", processes=2)
    assert_same(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("arguments", [FULL, LORA], ids=["all weights", "an adapter"])
def test_a_killed_sharded_run_goes_on_alone_and_the_other_way_round(tmp_path: Path, arguments: list[str]):
    arguments = [*arguments, "--max-steps", "8", "--save-steps", "1"]
    train(arguments, tmp_path / "whole", processes=1)

    killed = start([*arguments, "--shard"], tmp_path / "killed")
    while len(checkpoints(tmp_path / "killed" / "checkpoints")) < 2:
        assert killed.poll() is None, killed.communicate()[1][-3000:]
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed" / "final").exists()
    train([*arguments, "--resume"], tmp_path / "killed", processes=1)
    assert_same(tmp_path / "whole", tmp_path / "killed")

    shutil.copytree(tmp_path / "whole", tmp_path / "sharded", ignore=shutil.ignore_patterns("final"))
    train([*arguments, "--resume", "--shard"], tmp_path / "sharded", processes=2)
    assert_same(tmp_path / "whole", tmp_path / "sharded")


def test_what_does_not_go_with_sharding_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    more = ["--shard", "--qlora", "--compile", "--optimizer", "adamw_8bit", "--output-dir", str(tmp_path)]
    assert main([*FULL, *more]) == 2
    said = capsys.readouterr().err
    assert "--shard does not go with --qlora" in said
    assert "--shard does not go with --compile" in said
    assert "--shard does not go with --optimizer adamw_8bit" in said
    assert "--shard needs several processes: accelerate launch" in said
