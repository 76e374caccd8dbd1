import json
from pathlib import Path

import pytest

import bough
from bough.cli import main
from bough.data.reader import read
from tests.blocks import ROOT

EXAMPLES = Path(__file__).parents[2] / "examples"
GOOD = '{"prompt": "Hi", "chosen": "Hello", "rejected": "Go away"}\n'
SAME = '{"prompt": "Hi", "chosen": "Hello", "rejected": "Hello"}\n'
EMPTY = '{"prompt": "Hi", "chosen": "", "rejected": "Hello"}\n'


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text(GOOD + SAME + EMPTY + GOOD)
    return path


def test_stats_of_a_file_with_bad_rows_counts_them_by_reason(mixed: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "stats", str(mixed)]) == 0
    captured = capsys.readouterr()
    assert "2 pair" in captured.out
    assert "skipped 2 bad rows: 1 same_reply, 1 empty_completion" in captured.err


def test_validate_names_every_bad_row_and_exits_2(mixed: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "validate", str(mixed)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{mixed}:2: ") and '"rejected" equals "chosen"' in lines[0]
    assert lines[1].startswith(f"{mixed}:3: ")
    assert lines[2] == "4 rows read as trl: 2 good, 2 bad"


def test_validate_groups_repeated_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.jsonl").write_text(GOOD + SAME * 900 + EMPTY)
    assert main(["data", "validate", str(tmp_path / "a.jsonl")]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(f"{tmp_path}/a.jsonl:2: ") and "(900 rows, also " in lines[0]
    assert lines[2:] == ["902 rows read as trl: 1 good, 901 bad", "  900 same_reply", "  1 empty_completion"]


def test_reports_on_a_file_are_one_json_object(mixed: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "validate", str(mixed), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["good"], report["bad"], report["format"]) == (4, 2, 2, "trl")
    assert report["problems"][0]["first_places"] == [f"{mixed}:2"]
    assert main(["data", "stats", str(mixed), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["records"] == {"pair": 2} and report["skipped"] == {"same_reply": 1, "empty_completion": 1}
    assert report["numbers"]["characters per reply"]["max"] == 7
    assert main(["data", "formats", "--json"]) == 0
    formats = {one["name"]: one["write"] for one in json.loads(capsys.readouterr().out)["formats"]}
    assert formats["bough"] is True and formats["alpaca"] is False


def test_an_empty_file_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty.jsonl").write_text("\n")
    for verb in ("stats", "validate"):
        assert main(["data", verb, str(tmp_path / "empty.jsonl")]) == 2
        assert "contains no rows" in capsys.readouterr().err


def test_convert_keeps_every_record(tmp_path: Path):
    for name in ("household.jsonl", "household-pairs.jsonl"):
        for ending in (".jsonl", ".jsonl.zst"):
            output = tmp_path / (name + ending)
            assert main(["data", "convert", str(EXAMPLES / name), "--to", "bough", "-o", str(output)]) == 0
            assert list(read(output)) == list(read(EXAMPLES / name))


def test_convert_stops_at_bad_rows_names_them_all_and_writes_nothing(mixed: Path, capsys: pytest.CaptureFixture[str]):
    output = mixed.with_name("out.jsonl")
    assert main(["data", "convert", str(mixed), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert f"{mixed}:2: " in error and f"{mixed}:3: " in error
    assert [path.name for path in mixed.parent.iterdir()] == ["pairs.jsonl"]


def test_convert_can_skip_bad_rows_and_counts_them(mixed: Path, capsys: pytest.CaptureFixture[str]):
    output = mixed.with_name("out.jsonl")
    assert main(["data", "convert", str(mixed), "--on-error", "skip", "-o", str(output)]) == 0
    assert "skipped 2 bad rows" in capsys.readouterr().err
    assert len(list(read(output))) == 2


def test_convert_names_records_the_target_cannot_express(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, output = EXAMPLES / "household-pairs.jsonl", tmp_path / "out.jsonl"
    assert main(["data", "convert", str(source), "--to", "knowlyr-grpo", "-o", str(output)]) == 2
    assert "household-pairs.jsonl:1: " in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "alpaca", "-o", "x.jsonl"], "can only be read; writable: bough"),
        (["--to", "tlr", "-o", "x.jsonl"], "did you mean trl?"),
        (["-o", "x.txt"], "must end in .jsonl"),
        ([], "--output is required"),
    ],
)
def test_convert_says_what_is_allowed(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "convert", str(EXAMPLES / "household.jsonl"), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_convert_never_overwrites_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "out.jsonl"
    output.write_text("precious")
    command = ["data", "convert", str(EXAMPLES / "household.jsonl"), "-o", str(output)]
    assert main(command) == 2
    assert output.read_text() == "precious"
    assert main([*command, "--overwrite"]) == 0
    assert len(list(read(output))) == 5


def test_show_prints_a_transcript(capsys: pytest.CaptureFixture[str]):
    assert main(["data", "show", str(EXAMPLES / "household-pairs.jsonl"), "--index", "2"]) == 0
    shown = capsys.readouterr().out
    assert "✓ chosen" in shown and "✗ rejected" in shown


def test_show_past_the_end_says_how_many_there_are(capsys: pytest.CaptureFixture[str]):
    assert main(["data", "show", str(EXAMPLES / "household.jsonl"), "--index", "5"]) == 2
    assert "has 5 good records" in capsys.readouterr().err


def test_show_does_not_let_a_record_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    row = {"prompt": "Hi", "chosen": "\x1b]0;owned\x07\x1b[2J", "rejected": "no [bold]markup[/bold]"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["data", "show", str(tmp_path / "a.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown
    assert "[bold]markup[/bold]" in shown


PAIRS = ROOT / "examples" / "household-pairs.jsonl"


def test_what_is_written_is_read_back(tmp_path: Path):
    pairs = list(bough.read(PAIRS))
    path = bough.write(pairs, tmp_path / "pairs.jsonl.zst")
    assert list(bough.read(path)) == pairs
    with pytest.raises(bough.InputError, match="exists"):
        bough.write(pairs, path)
    with pytest.raises(bough.InputError, match=r"bough\.convert writes"):
        bough.write(str(path), tmp_path / "other.jsonl")


def test_converting_writes_all_rows_or_none(tmp_path: Path):
    path = bough.convert(PAIRS, tmp_path / "trl.jsonl", to="trl")
    assert len(path.read_text().splitlines()) == len(list(bough.read(PAIRS)))
    with pytest.raises(bough.InputError, match="knowlyr-grpo"):
        bough.convert(PAIRS, tmp_path / "groups.jsonl", to="knowlyr-grpo")
    assert [file.name for file in tmp_path.iterdir()] == ["trl.jsonl"]
    with pytest.raises(bough.InputError, match="can only be read"):
        bough.convert(PAIRS, tmp_path / "x.jsonl", to="alpaca")


def test_bad_rows_are_a_list(tmp_path: Path):
    file = tmp_path / "data.jsonl"
    file.write_text(PAIRS.read_text() + "{\n")
    [problem] = bough.validate(file)
    good = len(list(bough.read(PAIRS)))
    assert problem.line == good + 1 and problem.reason == "not_json"
    assert bough.validate(file).report["good"] == good and f"data.jsonl:{good + 1}" in repr(bough.validate(file))
    assert bough.validate(PAIRS) == []


def test_statistics_are_the_same_of_a_file_and_of_its_records():
    found = bough.stats(PAIRS)
    assert found == bough.stats(list(bough.read(PAIRS))) and f"{len(list(bough.read(PAIRS)))} pair" in found["records"]
    assert "14 pair" in repr(found)
