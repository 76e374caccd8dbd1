import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = """\
name: killed
model: tiny
defaults: {max_new_tokens: 6}
stages:
  - eval: {name: before, tasks: 12, temperature: 1.0}
  - collect: {name: own-play, tasks: 12, attempts: 4}
  - demos: {min_reward: 0.2}
  - sft: {max_steps: 6, batch_size: 4, save_steps: 1, learning_rate: 1.0e-3, logging_steps: 1}
  - collect: {name: again, tasks: 12, attempts: 4}
  - pairs: {kinds: [episode]}
  - dpo: {max_steps: 6, batch_size: 2, save_steps: 1, learning_rate: 1.0e-3, logging_steps: 1}
  - eval: {name: between, tasks: 12, temperature: 1.0, gate: {alpha: 0.05}}
  - grpo: {max_steps: 4, batch_size: 2, group_size: 4, save_steps: 1, learning_rate: 1.0e-3, watch: false}
  - eval: {name: after, tasks: 12, temperature: 1.0, gate: {alpha: 0.05}}
"""


def finish(folder: Path, kills: int) -> tuple[int, list[str]]:
    """Plays the recipe to its end through this many kills at most: how many there were, and the table at the end."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    world = "defaults.environment=tests.online.letters:Letters"  # a file names no code
    verb = ["run", "recipe.yaml", "--output-dir", "run", "--report-to", "none", "--set", world]
    command = [sys.executable, "-m", "tests.training.killed_run", str(kills), "5", *verb]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    begin = max(number for number, line in enumerate(lines) if line.startswith("evaluation"))
    return int(lines[-1]), lines[begin : begin + 4]


@pytest.mark.bit_exact
def test_a_run_that_is_killed_over_and_over_ends_in_the_same_tables(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    never, wanted = finish(whole, 0)
    hits, table = finish(killed, 10)
    assert never == 0 and hits >= 5
    assert table == wanted and [line.split()[0] for line in table[1:]] == ["01-before", "08-between", "10-after"]
    # Every file that a stage made of those before, by its content: episodes, pairs, weights, results.
    assert (whole / "run/lineage.json").read_text() == (killed / "run/lineage.json").read_text()
