import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bough
from bough.commands.objects import as_file, environment_name, records_of, reward_weights, trajectories_of
from bough.environments import given
from bough.environments.registry import find
from bough.environments.rubric import find as find_reward
from bough.ledger import Ledger
from tests.commands.letters import WriteLetter, length

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
import bough.commands.objects
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


def trajectory(id: str = "a#0") -> bough.Trajectory:
    reply = bough.Turn(reply=bough.Message(role="assistant", content="hi"))
    start = [bough.Message(role="user", content="say hi")]
    return bough.Trajectory(id=id, task=bough.Task(id="a"), start=start, turns=[reply], success=True)


def test_a_class_is_found_by_its_own_name_afterwards():
    assert environment_name(WriteLetter) == "WriteLetter"
    assert find("WriteLetter") is WriteLetter


def test_a_class_that_is_defined_again_replaces_the_first():
    def define(word: str) -> type[Any]:
        class Again:
            async def start(self) -> bough.Observation:
                return bough.Observation.say(word)

            async def step(self, reply: str) -> bough.Observation:
                return bough.Observation.end()

        return Again

    first, second = define("one"), define("two")
    environment_name(first)
    environment_name(second)
    assert issubclass(find("Again"), second) and not issubclass(find("Again"), first)


def test_an_object_of_the_class_is_refused():
    with pytest.raises(bough.InputError, match="give the class itself"):
        environment_name(WriteLetter(bough.Task(id="a")))  # type: ignore[arg-type]


def test_rewards_are_names_functions_lists_or_weights():
    assert reward_weights("outcome") == {"outcome": 1.0}
    assert reward_weights([length, "outcome"]) == {"length": 1.0, "outcome": 1.0}
    assert reward_weights({length: 0.5, "outcome": 2}) == {"length": 0.5, "outcome": 2}
    assert find_reward("length") is length


def test_a_reward_needs_a_name_of_its_own():
    with pytest.raises(bough.InputError, match="define it with def"):
        reward_weights(lambda trajectory: 1.0)

    def outcome(trajectory: bough.Trajectory) -> float:
        return 1.0

    with pytest.raises(bough.InputError, match="built-in reward is called 'outcome'"):
        reward_weights(outcome)
    assert "outcome" not in given.REWARDS


def test_trajectories_come_from_memory_and_from_files(tmp_path: Path):
    file = bough.write([trajectory("file#0")], tmp_path / "some.jsonl")
    group = bough.Group(task=bough.Task(id="a"), attempts=[trajectory("b#0"), trajectory("b#1")])
    found = trajectories_of([[trajectory(), group], file], Ledger("trajectories"))
    assert [item.trajectory.id for item in found] == ["a#0", "b#0", "b#1", "file#0"]
    assert [(item.file, item.line) for item in found[:3]] == [("records", 1), ("records", 2), ("records", 2)]


def test_what_is_no_record_is_named():
    for wrong in (3, {"messages": []}):
        with pytest.raises(bough.InputError, match=f"a {type(wrong).__name__} is neither a path"):
            records_of([wrong])  # type: ignore[list-item]
    with pytest.raises(bough.InputError, match="is a path among records"):
        records_of([trajectory(), "runs/x"])


def test_records_pass_through_a_file_unchanged_and_it_is_removed():
    with as_file([trajectory()]) as path:
        assert path is not None and list(bough.read(path)) == [trajectory()]
    assert not path.exists()
    with pytest.raises(bough.InputError, match="there are no records"), as_file([]):
        pass
