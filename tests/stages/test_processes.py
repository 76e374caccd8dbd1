"""Two processes under `accelerate launch` train what one trains."""

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bough.training.metrics_file import MetricsFile

ROOT = Path(__file__).parents[2]
LAUNCH = [
    "-m",
    "accelerate.commands.launch",
    "--cpu",
    "--num_processes",
    "2",
    "--num_machines",
    "1",
    "--mixed_precision",
    "no",
]


@pytest.mark.parametrize(
    "arguments",
    [
        ["dpo", "--train-file", str(ROOT / "examples" / "household-pairs.jsonl"), "--batch-size", "5"],
        ["sft", "--train-file", str(ROOT / "examples" / "household.jsonl"), "--batch-size", "3"],
    ],
    ids=["dpo", "sft"],
)
def test_two_processes_train_what_one_does(tmp_path: Path, arguments: list[str]):
    common = [*arguments, "--model", "tiny", "--max-steps", "3", "--learning-rate", "1e-2", "--save-steps", "1"]
    for name, launcher in (("one", ["-m"]), ("two", [*LAUNCH, "-m"])):
        command = [sys.executable, *launcher, "bough", *common, "--output-dir", str(tmp_path / name)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (MetricsFile.read(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in two], rel=1e-4)
    assert [line["grad_norm"] for line in one] == pytest.approx([line["grad_norm"] for line in two], rel=1e-3)
    weights = [load_file(tmp_path / name / "final" / "adapter_model.safetensors") for name in ("one", "two")]
    assert all((weights[0][key] - weights[1][key]).abs().max() < 1e-3 for key in weights[0])
