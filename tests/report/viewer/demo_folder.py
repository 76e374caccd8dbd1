"""A program: makes the folder that the pictures of docs/viewer.md are taken from. Takes some minutes.

python -m tests.report.viewer.demo_folder runs/viewer-demo
"""

import json
import sys
import tempfile
from pathlib import Path

import yaml

from bough.chat import tool_calls
from bough.cli import main as bough
from bough.types import Group, Message, Task, ToolCall, Trajectory, Turn
from tests.experiments.small import pairs_file
from tests.report.viewer.samples import write

RECIPE = {
    "name": "household-agent",
    "about": "Demonstrations, SFT at two learning rates, own play, preference pairs, DPO.",
    "model": "tiny",
    "defaults": {"environment": "household", "max_turns": 14, "max_new_tokens": 16},
    "stages": [
        {"collect": {"name": "demonstrations", "model": "expert", "tasks": 24}},
        {"demos": {}},
        {"sft": {"max_steps": 120, "batch_size": 2, "learning_rate": 2e-3}},
        {"sft": {"name": "sft-slower", "max_steps": 120, "batch_size": 2, "learning_rate": 5e-4}},
        {"collect": {"name": "own-play", "tasks": 8, "attempts": 3}},
        {"groups": {"from": ["own-play", "demonstrations"]}},
        {"pairs": {"from": ["own-play", "demonstrations"], "kinds": ["parting", "episode"]}},
        {"dpo": {"max_steps": 40, "batch_size": 2, "learning_rate": 2e-4}},
        {"eval": {"name": "after-dpo", "tasks": 12}},
    ],
}
EVOLVE = [
    *("--model", "tiny", "--metric", "loss", "--test-size", "0.25", "--seed", "4"),
    *("--population-size", "8", "--generations", "6", "--steps", "3", "--set", "batch_size=2", "lora_r=4"),
    *("--mutate", "learning_rate=1e-4..1e-2", "nll_alpha=0..1", "loss_type=sigmoid,ipo"),
]
PROBLEM = "Which positive whole numbers up to 60 divide 360? Give their sum."
SUM = "divisors = [n for n in range(1, 61) if 360 % n == 0]\nprint(sum(divisors))"
# Each attempt: the code of its calls with what they print, then the answer.
ATTEMPTS = [
    ([(SUM, "273")], "273"),
    ([("print([n for n in range(1, 61) if 360 % n == 0][:5])", "[1, 2, 3, 4, 5]"), (SUM, "273")], "273"),
    ([("print([n for n in range(1, 61) if 360 % n == 0][:5])", "[1, 2, 3, 4, 5]")], "15"),
    ([("print(sum(n for n in range(1, 60) if n % 360 == 0))", "0")], "0"),
]


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    recipe = folder.parent / f"{folder.name}.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    assert bough(["run", str(recipe), "-o", str(folder), "--report-to", "none"]) == 0
    household = ["--environment", "household", "--max-turns", "14"]
    models = ["expert", "random"]
    assert bough(["eval", *household, "--model", *models, "--episodes", "24", "--output", f"{folder}/10-all"]) == 0
    assert bough(["collect", "--environment", "interpreter", "--model", "expert", "--tasks", "6",
                  "--output", f"{folder}/11-tools"]) == 0  # fmt: skip
    evolved(folder / "13-evolution")
    task = Task(id="divisors-of-360", environment="interpreter", data={"kind": "arithmetic"})
    attempts = [_attempt(task, number, *one) for number, one in enumerate(ATTEMPTS)]
    write(folder / "12-tool-groups/groups.jsonl", Group(task=task, attempts=attempts))


def evolved(folder: Path) -> None:
    """An evolution on a few short pairs."""
    with tempfile.TemporaryDirectory() as place:
        train_file = str(pairs_file(Path(place)))
        assert bough(["evolve", *EVOLVE, "--train-file", train_file, "--output-dir", str(folder)]) == 0


def _attempt(task: Task, number: int, calls: list[tuple[str, str]], answer: str) -> Trajectory:
    turns = []
    for code, printed in calls:
        call = tool_calls.call_text(ToolCall(name="code_interpreter", arguments={"code": code}))
        seen = [Message(role="tool", content=printed, name="code_interpreter")]
        turns.append(Turn(reply=Message(role="assistant", content=call), action=call, observation=seen))
    right = answer == "273"
    last = Message(role="assistant", content=f"The sum is \\boxed{{{answer}}}.")
    verdict = [Message(role="user", content="Correct." if right else "Wrong.")]
    turns.append(Turn(reply=last, action=last.content, observation=verdict))
    return Trajectory(
        id=f"{task.id}#{number}",
        task=task,
        start=[Message(role="user", content=PROBLEM)],
        turns=turns,
        rewards={"outcome": float(right)},
        success=right,
        stop="done",
        info={"agent": "demo"},
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]))
    print(json.dumps({"made": sys.argv[1]}))
