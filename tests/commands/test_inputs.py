import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = str(EXAMPLES / "household.jsonl")
MISSING = [
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
]  # fmt: skip
SEVERAL = ["sft", "--train-file", "none.jsonl", "--model", "./none"]
# Each command runs in a process of its own, forked from one that has loaded the settings of all commands.
PROGRAM = """
import json, os, sys
import bough.commands.inputs
from contextlib import redirect_stderr
from io import StringIO
from bough.cli import main
from bough.commands import table

for words in json.load(sys.stdin):
    if os.fork() == 0:
        with redirect_stderr(StringIO()) as said:
            code = main(words)
        print(json.dumps([code, said.getvalue(), "torch" in sys.modules]), flush=True)
        os._exit(0)
    os.wait()
"""


class Answer(NamedTuple):
    code: int
    said: str
    has_torch: bool


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    commands = [*(words for words, _ in MISSING), SEVERAL]
    command, folder = [sys.executable, "-c", PROGRAM], tmp_path_factory.mktemp("empty")
    done = subprocess.run(
        command, cwd=folder, input=json.dumps(commands), stdout=subprocess.PIPE, text=True, check=True
    )  # fmt: skip
    found = [Answer(*json.loads(line)) for line in done.stdout.splitlines()]
    return {str(words): answer for words, answer in zip(commands, found, strict=True)}


@pytest.mark.parametrize(("words", "said"), MISSING)
def test_a_missing_input_is_said_before_torch_is_imported(answers: dict[str, Answer], words: list[str], said: str):
    answer = answers[str(words)]
    assert said in answer.said and answer.code == 2 and not answer.has_torch


def test_several_missing_inputs_are_reported_together(answers: dict[str, Answer]):
    assert answers[str(SEVERAL)].said == (
        "Error: 2 inputs cannot be used:\n"
        "  - none.jsonl: there is no such file or folder\n"
        "  - there is no folder ./none\n"
    )
