import json
from pathlib import Path
from typing import Any

import pytest

from bough.cli import main
from bough.evaluation.results import Results
from tests.evaluation.samples import binary, result


def write(folder: Path, name: str, words: str, **more: Any) -> str:
    values: dict[str, Any] = {"environment": "counting", "seed": 0, "split": "unseen"}
    Results(**(values | more), models=[result(name, words)]).write(folder / f"{name}.json")
    return str(folder / f"{name}.json")


def run(capsys: Any, *words: str) -> tuple[int, str, str]:
    code = main(["compare", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_two_files_are_compared(tmp_path: Path, capsys: Any):
    a, b = write(tmp_path, "a", binary("0" * 8 + "11")), write(tmp_path, "b", binary("1" * 10))
    code, out, _ = run(capsys, a, b, "-o", str(tmp_path / "out.json"))
    assert code == 0 and "b against a: +80.0 points" in out and "; significant." in out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["comparisons"][0]["better"] == 8 and found["gate"] is None and found["reports"]["b"]["tasks"] == 10


def test_a_folder_stands_for_its_results_and_one_name_in_two_files_for_two_models(tmp_path: Path, capsys: Any):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Path(write(tmp_path / name, "a", binary("1010"))).rename(tmp_path / name / "results.json")
    code, out, _ = run(capsys, str(tmp_path / "one"), str(tmp_path / "two"))
    assert code == 0 and f"a ({tmp_path / 'two'}) against a ({tmp_path / 'one'}): +0.0 points" in out


def test_the_gate_is_an_exit_code(tmp_path: Path, capsys: Any):
    a, b = write(tmp_path, "a", binary("0" * 5 + "1")), write(tmp_path, "b", binary("1" * 6))
    code, out, _ = run(capsys, a, b, "--gate")
    assert code == 0 and "b is better: promoted" in out
    code, out, _ = run(capsys, b, a, "--gate")
    assert code == 1 and "a is not shown to be better: the earlier model is kept" in out
    assert run(capsys, a, b, "--gate", "--level", "0.99")[0] == 1
    assert run(capsys, b, a)[0] == 0


def test_the_gate_by_type_refuses_a_loss_on_one_type(tmp_path: Path, capsys: Any):
    files = []
    for name, words in (("a", "0" * 20 + "1" * 6), ("b", "1" * 20 + "0" * 6)):
        model = result(name, binary(words))
        typed = [one.model_copy(update={"type": "xy"[i >= 20]}) for i, one in enumerate(model.outcomes)]
        files.append(str(tmp_path / f"{name}.json"))
        found = model.model_copy(update={"outcomes": typed})
        Results(environment="counting", seed=0, split="unseen", models=[found]).write(Path(files[-1]))
    assert run(capsys, *files, "--gate")[0] == 0
    code, out, _ = run(capsys, *files, "--gate", "--gate-by-type")
    assert code == 1 and "b is worse on y (-100.0 points on 6 tasks" in out
    code, _, problem = run(capsys, *files, "--gate-by-type")
    assert code == 2 and "--gate-by-type needs --gate" in problem


def test_three_models_all_with_all(tmp_path: Path, capsys: Any):
    files = [write(tmp_path, name, binary(word)) for name, word in (("a", "1100"), ("b", "1110"), ("c", "1111"))]
    code, out, _ = run(capsys, *files, "--against", "all")
    assert code == 0 and "c against b" in out and "correction for 3 comparisons" in out
    assert "c against b" not in run(capsys, *files)[1]


def test_one_file_that_was_stopped_by_looking_sets_the_test_for_all(tmp_path: Path, capsys: Any):
    a = write(tmp_path, "a", binary("0" * 8 + "11"), stop_width=0.5)
    code, out, _ = run(capsys, a, write(tmp_path, "b", binary("1" * 10)))
    assert code == 0 and "e-process" in out and "McNemar" not in out


def test_other_settings_of_the_models_are_noted(tmp_path: Path, capsys: Any):
    a, b = write(tmp_path, "a", binary("10")), write(tmp_path, "b", binary("11"))
    for path, temperature in ((a, 0.0), (b, 1.0)):
        content = json.loads(Path(path).read_text())
        content["models"][0]["settings"] = {"temperature": temperature, "engine": "local"}
        Path(path).write_text(json.dumps(content))
    out = run(capsys, a, b)[1]
    assert "note: temperature differs: [0.0, 1.0]" in out and "engine differs" not in out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"seed": 1}, "seed is 0 in"),
        ({"environment": "web"}, "environment is 'counting' in"),
        ({"split": "train"}, "split is 'unseen' in"),
        ({"options": {"n": 2}}, "options is {} in"),
    ],
)
def test_what_cannot_be_compared_is_refused(change: dict[str, Any], complaint: str, tmp_path: Path, capsys: Any):
    a, b = write(tmp_path, "a", binary("10")), write(tmp_path, "b", binary("11"), **change)
    code, out, err = run(capsys, a, b)
    assert code == 2 and out == "" and "these results cannot be compared" in err and complaint in err


def test_one_model_is_none_to_compare(tmp_path: Path, capsys: Any):
    code, _, err = run(capsys, write(tmp_path, "a", binary("10")))
    assert code == 2 and "a comparison needs two" in err
    assert "FILES is required" in run(capsys)[2]
