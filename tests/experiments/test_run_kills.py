from pathlib import Path

import pytest

from tests.training.killed_run import KilledRuns

RECIPE = """\
name: killed
model: tiny
defaults: {max_new_tokens: 6}
stages:
  - eval: {name: before, tasks: 4, temperature: 1.0}
  - collect: {name: own-play, tasks: 6, attempts: 4}
  - demos: {min_reward: 0.2}
  - sft: {max_steps: 2, batch_size: 4, save_steps: 1, learning_rate: 1.0e-3, logging_steps: 1}
  - collect: {name: again, tasks: 4, attempts: 4}
  - pairs: {kinds: [episode]}
  - dpo: {max_steps: 2, batch_size: 2, save_steps: 1, learning_rate: 1.0e-3, logging_steps: 1}
  - eval: {name: between, tasks: 4, temperature: 1.0, gate: {alpha: 0.05}}
  - grpo: {max_steps: 2, batch_size: 2, group_size: 4, save_steps: 1, learning_rate: 1.0e-3, watch: false}
  - eval: {name: after, tasks: 4, temperature: 1.0, gate: {alpha: 0.05}}
"""


def finish(runs: KilledRuns, folder: Path, kills: int) -> tuple[int, list[str]]:
    """Plays the recipe to its end through this many kills at most: how many there were, and the table at the end."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    world = "defaults.environment=tests.online.letters:Letters"  # a file names no code
    verb = ["run", "recipe.yaml", "--output-dir", "run", "--report-to", "none", "--set", world]
    hits, lines = runs.finish(folder, verb, kills=kills, seed=5)
    begin = max(number for number, line in enumerate(lines) if line.startswith("evaluation"))
    return hits, lines[begin : begin + 4]


@pytest.mark.bit_exact
def test_a_run_that_is_killed_over_and_over_ends_in_the_same_tables(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with KilledRuns(tmp_path) as runs:
        never, wanted = finish(runs, whole, 0)
        hits, table = finish(runs, killed, 6)
    assert never == 0 and hits >= 3
    assert table == wanted and [line.split()[0] for line in table[1:]] == ["01-before", "08-between", "10-after"]
    # Every file that a stage made of those before, by its content: episodes, pairs, weights, results.
    assert (whole / "run/lineage.json").read_text() == (killed / "run/lineage.json").read_text()
