import json
from pathlib import Path

import pytest

import bough
from bough.cli import main
from bough.commands.doctor import importable_name
from bough.data.writer import Writer
from bough.models.tiny import CONTEXT
from bough.types import Call, Message, Task, Trajectory, Turn
from tests.blocks import ROOT
from tests.commands.letters import CopyLetter

EXAMPLES = Path(__file__).parents[2] / "examples"
HOUSEHOLD = str(EXAMPLES / "household.jsonl")
QWEN3 = str(EXAMPLES.parent / "tests" / "templates" / "qwen3.jinja")


def doctor(*words: str) -> int:
    return main(["doctor", *words, "--model", "tiny"])


def test_the_doctor_shows_trained_tokens_and_counts_them(capsys: pytest.CaptureFixture[str]):
    assert doctor(HOUSEHOLD) == 0
    shown = capsys.readouterr().out
    assert "⟦THOUGHT: The cabinet 11 is worth a look.\nACTION: go to cabinet 11<|im_end|>⟧" in shown
    assert "63 calls in, 63 kept, 0 dropped" in shown
    assert "5 replies are marked as not trained" in shown
    assert "OK:" in shown


def test_what_is_shown_as_trained_are_the_replies_and_nothing_else(capsys: pytest.CaptureFixture[str]):
    assert doctor(HOUSEHOLD, "--samples", "5") == 0
    shown = capsys.readouterr().out
    trained = [piece.partition("⟧")[0] for piece in shown.split("⟦")[1:]]
    rows = [json.loads(line) for line in Path(HOUSEHOLD).read_text().splitlines()]
    replies = [said["value"] for row in rows for said in row["conversations"] if said.get("loss")]
    assert trained == [reply + "<|im_end|>" for reply in replies]


def test_answers_that_do_not_fit_are_a_failure(capsys: pytest.CaptureFixture[str]):
    assert doctor(HOUSEHOLD, "--max-length", "40") == 2
    shown = capsys.readouterr().out
    assert "FAIL no trained token" in shown
    assert "FAIL answer cut off: 63 answers do not fit into max_length 40" in shown


def test_calls_beyond_the_models_context_are_counted_and_are_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def row(words: int) -> str:
        said = [("user", "Say it."), ("assistant", "word " * words)]
        return json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}) + "\n"

    (tmp_path / "a.jsonl").write_text(row(3) + row(CONTEXT))
    assert doctor(str(tmp_path / "a.jsonl"), "--samples", "0") == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 calls in, 1 kept, 1 dropped (1 too_long)" in shown
    assert f"FAIL longer than the context: 1 call is longer than the model's context of {CONTEXT} tokens" in shown


def test_an_answer_that_was_cut_off_when_sampled_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from bough.models.resolve import load_tokenizer

    ids = load_tokenizer("tiny")("ACTION: go to", add_special_tokens=False)["input_ids"]
    call = Call(prompt_ids=[1, 5, 6], completion_ids=ids, text="ACTION: go to", finish="length")
    turn = Turn(reply=Message(role="assistant", content="ACTION: go to"), call=call)
    with Writer(tmp_path / "a.jsonl") as writer:
        writer.write(Trajectory(id="a", task=Task(id="t"), start=[Message(role="user", content="Hi")], turns=[turn]))
    assert doctor(str(tmp_path / "a.jsonl")) == 2
    assert "FAIL answer cut off: 1 recorded answer does not end with <|im_end|>" in capsys.readouterr().out


def test_a_model_without_a_template_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from bough.models.resolve import load_tokenizer

    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "model")
    assert main(["doctor", HOUSEHOLD, "--model", str(tmp_path / "model")]) == 2
    assert "has no chat template" in capsys.readouterr().err


def test_a_template_without_end_of_turn_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "bad.jinja").write_text("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    assert doctor(HOUSEHOLD, "--chat-template", str(tmp_path / "bad.jinja")) == 2
    assert "no end-of-turn token" in capsys.readouterr().err


def test_bad_rows_are_a_failure_that_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.jsonl").write_text(Path(HOUSEHOLD).read_text() + '{"conversations": 7}\n' * 2)
    assert doctor(str(tmp_path / "a.jsonl"), "--samples", "0") == 2
    shown = capsys.readouterr().out
    assert "7 rows in, 5 kept, 2 dropped (2 wrong_type)" in shown
    assert "FAIL bad rows: 2 of 7 rows cannot be read" in shown and f"{tmp_path}/a.jsonl:6: " in shown
    assert f"(2 rows, also {tmp_path}/a.jsonl:7)" in shown and "OK" not in shown


def test_the_report_is_one_json_object(capsys: pytest.CaptureFixture[str]):
    assert doctor(HOUSEHOLD, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["calls"]["kept"] == 63 and report["rows"]["kept"] == 5 and not report["limited"]
    assert doctor(HOUSEHOLD, "--json", "--max-length", "40", "--limit", "2") == 2
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"] and report["limited"]
    assert {finding["name"] for finding in report["findings"]} >= {"no trained token", "answer cut off"}


PAIRS = ROOT / "examples" / "household-pairs.jsonl"


def test_the_doctor_counts_tokens_of_records_in_memory_as_of_their_file():
    memory, file = bough.doctor(list(bough.read(PAIRS)), "tiny"), bough.doctor(PAIRS, "tiny")
    assert memory.report == file.report and memory.ok
    assert "tokens trained" in repr(memory)


def test_the_doctor_fails_data_without_a_trained_token():
    start = [bough.Message(role="user", content="hello")]
    turn = bough.Turn(reply=bough.Message(role="assistant", content="hi"), trained=False)
    found = bough.doctor([bough.Trajectory(id="a", task=bough.Task(id="a"), start=start, turns=[turn])], "tiny")
    assert not found.ok and "FAIL" in repr(found)


def test_an_environment_class_is_checked_in_another_process_too():
    assert importable_name(CopyLetter) == "tests.commands.letters:CopyLetter"
    assert bough.check(CopyLetter, tasks=2).problems == []


def test_a_class_inside_a_function_is_checked_in_this_process():
    class Forgetful(CopyLetter):
        async def expert(self) -> str:
            return "7"  # never the letter

    assert importable_name(Forgetful) is None
    [problem] = bough.check(Forgetful, tasks=1).problems
    assert "expert" in problem
