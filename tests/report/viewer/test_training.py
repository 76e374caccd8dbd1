from collections.abc import Callable
from pathlib import Path

import pytest

from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError
from bough.report.viewer.training import training
from tests.report.viewer.run_folder import LOSSES

Make = Callable[[Path], Index]


def test_the_curves_come_with_the_settings(folder: Path, make_index: Make):
    found = training(make_index(folder), "05-dpo", 0)
    assert [line["loss"] for line in found["lines"]] == LOSSES
    assert found["lines"][2]["margin/loop"] == pytest.approx(0.06)
    assert (found["settings"]["learning_rate"], found["report"]["tokens_trained"]) == (5e-05, 2727)
    assert (found["state"], found["more"]) == ("done", False)


def test_a_page_asks_only_for_what_is_new(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    file = tmp_path / "run/metrics.jsonl"
    file.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    index = make_index(tmp_path / "run")
    first = training(index, ".", 0)
    assert [line["step"] for line in first["lines"]] == [1]
    with file.open("a") as stream:
        stream.write('ss": 1.5}\n')
    second = training(index, ".", first["next"])
    assert second["lines"] == [{"step": 2, "loss": 1.5}] and "settings" not in second
    assert training(index, ".", second["next"])["lines"] == []


def test_a_run_that_went_back_is_read_from_the_start(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    file = tmp_path / "run/metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n')
    index = make_index(tmp_path / "run")
    behind = training(index, ".", 0)["next"]
    file.write_text('{"step": 1}\n')
    again = training(index, ".", behind)
    assert (again["from"], again["lines"]) == (0, [{"step": 1}])


def test_lines_that_are_no_metrics_are_left_out(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text(
        'nonsense\n[1]\n{"loss": 1}\n{"step": true}\n'
        '{"step": 1, "loss": NaN, "x": null, "y": "<b>", "z": 1e400, "ok": 2}\n'
    )
    assert training(make_index(tmp_path / "run"), ".", 0)["lines"] == [{"step": 1, "ok": 2}]


def test_only_training_runs_of_the_folder_are_shown(folder: Path, make_index: Make):
    index = make_index(folder)
    for name in ("06-eval", "../played/05-dpo", str(folder / "05-dpo"), ""):
        with pytest.raises(MissingError):
            training(index, name, 0)


def test_a_number_that_no_float_holds_is_left_out(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "kl": 1' + "0" * 400 + '}\n{"step": 1e99}\n')
    assert training(make_index(tmp_path / "run"), ".", 0)["lines"] == [{"step": 1, "loss": 2.0}]
