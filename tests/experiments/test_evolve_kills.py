"""`bough evolve` is killed at random moments (SIGKILL) and resumed: the same population as without the kills.

BOUGH_EVOLVE_KILLS=20 python -m pytest tests/experiments/test_evolve_kills.py  # 20 kills of each run, at most 4 at once
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bough.data.writer import Writer
from bough.types import Message, Task, Trajectory
from tests.experiments.small import WORDS, say
from tests.training.killed_run import KilledRuns

KILLS, AT_MOST = int(os.environ.get("BOUGH_EVOLVE_KILLS", "3")), 4
COMMON = [
    *("evolve", "--model", "tiny", "--output-dir", "run", "--resume", "--seed", "3", "--generations", "2"),
    *("--population-size", "3", "--no-mutation", "0"),
]
SMALL = ["lora_r=2", "lora_alpha=4", "batch_size=2", "lora_target_modules=[q_proj]"]
METHODS = {
    "sft": [
        *("--method", "sft", "--train-file", "demos.jsonl", "--test-size", "0.25", "--steps", "3"),
        *("--mutate", "learning_rate=1e-4..1e-2", "--set", *SMALL),
    ],
    "grpo": [
        *("--method", "grpo", "--environment", "tests.online.letters:Letters", "--eval-tasks", "3", "--steps", "2"),
        *("--max-new-tokens", "4", "--metric", "reward", "--set", "group_size=3", *SMALL),
        *("--mutate", "temperature=0.5..1.5", "learning_rate=1e-3..2e-2"),
    ],
}
TIMED = {"seconds"}  # what differs between two runs with the same result


def demonstrations(path: Path) -> None:
    with Writer(path) as writer:
        for number in range(12):
            word, start = WORDS[number % len(WORDS)], [Message(role="user", content=f"{number}: write a colour")]
            writer.write(Trajectory(id=str(number), task=Task(id=str(number)), start=start, turns=say(word)))


def untimed(value: Any) -> Any:
    """A JSON value without what depends on the clock."""
    if isinstance(value, dict):
        return {key: untimed(one) for key, one in value.items() if key not in TIMED}
    return [untimed(one) for one in value] if isinstance(value, list) else value


def content(run: Path) -> dict[str, Any]:
    """Everything that a run leaves about its population: lineage, reports and every member's files, bit for bit."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and "rollouts" not in path.parts]
    kept = {str(path.relative_to(run)): path for path in files if path.name not in ("origin.json", "config.yaml")}
    assert not [name for name in kept if name.startswith("checkpoints/.")]
    return {
        name: [untimed(json.loads(line)) for line in path.read_text().splitlines()]
        if path.suffix == ".jsonl"
        else untimed(json.loads(path.read_text()))
        if path.suffix == ".json"
        else path.read_bytes()
        for name, path in kept.items()
    }


@pytest.mark.bit_exact
@pytest.mark.parametrize("method", METHODS)
def test_a_population_that_is_killed_over_and_over_is_the_same(tmp_path: Path, method: str):
    hits = number = 0
    with KilledRuns(tmp_path) as runs:
        for name in ("whole", *(f"killed-{seed}" for seed in range(-(-KILLS // AT_MOST)))):
            (tmp_path / name).mkdir()
            demonstrations(tmp_path / name / "demos.jsonl")
            wanted = 0 if name == "whole" else min(AT_MOST, KILLS - AT_MOST * number)
            done, _ = runs.finish(tmp_path / name, [*COMMON, *METHODS[method]], kills=wanted, seed=number)
            number += name != "whole"
            hits += done
            found = content(tmp_path / name / "run")
            if name == "whole":
                whole = found
                assert len(found["lineage.jsonl"]) == 6 and found["report.json"]["generations"] == 2
            assert found == whole
    print(f"{hits} kills of {method}")
    assert hits >= KILLS // 2
