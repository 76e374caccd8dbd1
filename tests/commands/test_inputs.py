import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = str(EXAMPLES / "household.jsonl")


def say(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command; the last line of stdout says whether torch was imported for it."""
    code = f"import sys; from bough.cli import main; code = main({list(words)!r}); print('torch' in sys.modules, code)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sft", "--train-file", "none.jsonl"], "none.jsonl: there is no such file or folder"),
        (["dpo", "--train-file", DATA, "--eval-file", "none.jsonl"], "none.jsonl: there is no such file or folder"),
        (["sft", "--train-file", DATA, "--model", "runs/none/final"], "there is no folder runs/none/final"),
        (["grpo", "--environment", "household", "--max-steps", "1", "--task-file", "t.jsonl"],
         "--task-file t.jsonl: there is no such file"),
        (["doctor", DATA, "--chat-template", "none.jinja"], "--chat-template none.jinja: there is no such file"),
        (["eval", "--environment", "household", "--model", "./none", "-o", "eval"], "there is no folder ./none"),
        (["demos", "none", "-o", "demos.jsonl"], "none: there is no such file or folder"),
        (["grpo", "--environment", "housold", "--max-steps", "1"], "no environment 'housold'; did you mean household?"),
        (["collect", "--environment", "household", "--split", "nowhere", "--model", "tiny", "-o", "none"],
         "there is no split 'nowhere'"),
        (["collect", "--environment", "household", "--adapter", "none", "--model", "tiny", "-o", "none"],
         "--adapter none: there is no such folder"),
    ],
)  # fmt: skip
def test_a_missing_input_is_said_before_torch_is_imported(words: list[str], said: str):
    done = say(*words)
    assert said in done.stderr and done.stdout.split() == ["False", "2"]


def test_several_missing_inputs_are_reported_together():
    done = say("sft", "--train-file", "none.jsonl", "--model", "./none")
    assert done.stderr == (
        "Error: 2 inputs cannot be used:\n"
        "  - none.jsonl: there is no such file or folder\n"
        "  - there is no folder ./none\n"
    )
