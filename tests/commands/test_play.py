import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.cli import main
from tests.environments.worlds import Counting

COUNTING = "tests.environments.worlds:Counting"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_actions_of_a_file_are_replayed_a_json_line_a_step(tmp_path: Path, capsys: Any):
    actions = tmp_path / "actions.txt"
    actions.write_text('1\n\n""\n{"action": "2"}\n')
    code, out, _ = run(capsys, "play", COUNTING, "--actions", str(actions), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["observation"] == "Count.\n\nTo 2. Begin with 1."
    assert [row["error"] for row in rows] == [None, None, "malformed", None]
    assert rows[3] == {
        "step": 3, "action": "2", "observation": "Done.", "reward": 1.0, "progress": 1.0, "terminated": True,
        "truncated": False, "success": True, "error": None, "stop": None,
    }  # fmt: skip


def test_a_person_plays_until_the_end(capsys: Any, monkeypatch: pytest.MonkeyPatch):
    typed = iter(["1", "", "2"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    code, out, err = run(capsys, "play", COUNTING)
    assert code == 0 and out.rstrip().endswith("— success")
    assert "1\n2" in err, "an empty line lists what can be done"


def test_a_person_who_leaves_is_let_go(capsys: Any, monkeypatch: pytest.MonkeyPatch):
    def leave(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", leave)
    assert run(capsys, "play", COUNTING)[0] == 0


def test_a_task_is_chosen_by_number_or_name(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    for chosen in ("2", "train-0-2"):
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        code, out, _ = run(capsys, "play", COUNTING, "--task", chosen, "--actions", "-", "--json")
        assert code == 0 and "To 4." in json.loads(out)["observation"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--task", "nine"], "--task nine: no task has that number or id"),
        (["--actions", "missing.txt"], "--actions missing.txt: cannot be read"),
        (["--game", "game.tw-pddl"], "--game game.tw-pddl: counting does not play game files"),
    ],
)
def test_bad_input_is_named(words: list[str], complaint: str, capsys: Any):
    code, _, err = run(capsys, "play", COUNTING, *words)
    assert code == 2 and complaint in err


def test_a_bad_action_is_named_by_its_place(tmp_path: Path, capsys: Any):
    actions = tmp_path / "actions.jsonl"
    actions.write_text('"1"\n{"act": 1}\n')
    code, out, err = run(capsys, "play", COUNTING, "--actions", str(actions), "--json")
    assert code == 2 and out == "" and "actions.jsonl:2: an action is text" in err


def test_actions_give_the_start_and_one_observation_each():
    seen = bough.play(Counting, ["1", "x", "2"])
    assert [observation.error for observation in seen] == [None, None, "malformed", None]
    assert seen[0].text.endswith("To 2. Begin with 1.") and seen[-1].success is True


def test_settings_are_those_of_the_command_and_a_running_loop_is_no_obstacle():
    async def in_a_notebook() -> Any:
        return bough.play(Counting, [], task="2")

    [start] = asyncio.run(in_a_notebook())
    assert "To 4." in start.text
    with pytest.raises(bough.InputError, match="--task nine: no task has that number or id"):
        bough.play(Counting, [], task="nine")


def test_one_text_is_not_a_list_of_actions():
    with pytest.raises(bough.InputError, match="actions are a list of texts"):
        bough.play(Counting, "12")
