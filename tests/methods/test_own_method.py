"""A training method in a package of the user's: a command, a function, a stage and a card, without a line of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]

DATA = str(ROOT / "examples" / "household.jsonl")
SETTINGS = {"max_steps": 2, "batch_size": 2, "learning_rate": 1e-2, "report_to": []}
RECIPE = f"""
name: own
seed: 42
model: tiny
stages:
  - focal: {{train_file: {DATA}, max_steps: 2, batch_size: 2, learning_rate: 1.0e-2, focus: 1.0}}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder)]
    subprocess.run([*command, str(ROOT / "examples" / "own_method")], check=True, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def done(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which every use of the method has been tried, and what was printed."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "recipe.yaml").write_text(RECIPE)
    flags = ["--max-steps", "2", "--batch-size", "2", "--learning-rate", "1e-2", "--focus", "1"]
    code = f"""
import sys
import bough
from bough.cli import main

for words in (
    ["--help"],
    ["focal", "--help"],
    ["focal", "--model", "tiny", "--train-file", {DATA!r}, "--output-dir", "flags", *{flags!r}],
    ["run", "recipe.yaml", "-o", "recipe", "--report-to", "none"],
    ["card", "flags", "--license", "mit"],
    ["runs", "list", "."],
):
    if main(words):
        sys.exit(f"failed: {{words}}")
trained = bough.focal("tiny", {DATA!r}, output_dir="python", focus=1.0, **{SETTINGS!r})
print("trained", trained)
"""
    paths = os.pathsep.join(filter(None, [str(installed), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return folder, found.stdout


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def test_it_is_a_command_with_help(done: tuple[Path, str]):
    shown = done[1]
    assert "focal fine-tuning on demonstrations" in shown
    assert "usage: bough focal" in shown and "--focus FLOAT" in shown and "--learning-rate" in shown


def test_the_command_the_function_and_the_stage_train_the_same(done: tuple[Path, str]):
    folder = done[0]
    by_flags = weights(folder / "flags/final")
    for other in ("python/final", "recipe/01-focal/final"):
        assert all(torch.equal(tensor, by_flags[name]) for name, tensor in weights(folder / other).items())
    lines = [json.loads(line) for line in (folder / "flags/metrics.jsonl").read_text().splitlines()]
    assert 0 < lines[0]["weight"] < 1  # its own loss: SFT's weights are 1


def test_the_settings_name_it_and_the_card_describes_it(done: tuple[Path, str]):
    folder, shown = done
    assert (folder / "flags/config.yaml").read_text().startswith("command: focal\n")
    card = (folder / "flags/final/README.md").read_text()
    assert "**Focal fine-tuning** (flags). As SFT, but the more certain the model is of a token" in card
    assert "focus" in card
    assert any(line.split()[:2] == ["flags", "focal"] for line in shown.splitlines())
