from collections.abc import Callable
from pathlib import Path

import pytest

from bough.evaluation.intervals import wilson
from bough.evaluation.results import ModelResult, Outcome, Results
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError
from bough.report.viewer.runs import evaluation, rates
from tests.evaluation.samples import result

Make = Callable[[Path], Index]


def results(folder: Path, solved: list[bool], seed: int = 0, name: str = "m") -> None:
    outcomes = [
        Outcome(task=f"t{n}", digest="d", success=one, stop=None if one else "loop") for n, one in enumerate(solved)
    ]
    folder.mkdir(parents=True)
    Results(environment="household", seed=seed, models=[ModelResult(name=name, outcomes=outcomes)]).write(
        folder / "results.json"
    )


def test_a_played_evaluation_with_links_to_its_episodes(folder: Path, make_index: Make):
    found = evaluation(make_index(folder), "06-eval")
    assert [model["name"] for model in found["models"]] == ["expert", "random"]
    assert found["models"][1]["file"] == "06-eval/models/random/trajectories.jsonl"
    assert found["models"][1]["report"]["failures"] == {"max_turns": 6}
    [comparison] = found["comparisons"]
    # All six tasks lost: McNemar's exact p is 2 / 2**6.
    assert comparison["success"]["mean"] == -1.0 and comparison["success"]["p"] == pytest.approx(2 / 64)


def test_lost_episodes_are_told_wherever_episodes_are_counted(tmp_path: Path, make_index: Make):
    (tmp_path / "run/a").mkdir(parents=True)
    model = result("m", "1 1 x")
    Results(environment="household", seed=0, models=[model]).write(tmp_path / "run/a/results.json")
    index = make_index(tmp_path / "run")
    [shown] = evaluation(index, "a")["models"]
    assert [one["task"] for one in shown["lost"]] == ["t2"] and shown["report"]["lost"] == 1
    [row] = rates(index, "a")
    assert (row["mean"], row["episodes"], row["lost"]) == (1.0, 2, 1) and row["interval"]["low"] == wilson(2, 3)[0]


def test_evaluations_of_one_run_on_the_same_tasks_are_compared(tmp_path: Path, make_index: Make):
    results(tmp_path / "run/01-base", [False] * 8)
    results(tmp_path / "run/02-sft", [True] * 8)
    results(tmp_path / "run/03-other", [True] * 8, seed=1)
    results(tmp_path / "run/deeper/04", [True] * 8)
    found = evaluation(make_index(tmp_path / "run"), "02-sft")
    assert [model["name"] for model in found["models"]] == ["01-base", "02-sft"]
    [comparison] = found["comparisons"]
    assert (comparison["first"], comparison["success"]["mean"], comparison["significant"]) == ("01-base", 1.0, True)
    assert found["models"][0]["file"] is None


def test_what_cannot_be_compared_is_said(tmp_path: Path, make_index: Make):
    results(tmp_path / "run/a", [True])
    results(tmp_path / "run/b", [True])
    file = tmp_path / "run/b/results.json"
    file.write_text(file.read_text().replace('"digest": "d"', '"digest": "e"'))
    found = evaluation(make_index(tmp_path / "run"), "a")
    assert found["comparisons"] == [] and "different tasks with the same name" in found["why_not"]


def test_numbers_are_made_from_the_outcomes_and_not_taken_on_trust(tmp_path: Path, make_index: Make):
    results(tmp_path / "run/a", [True, False])
    file = tmp_path / "run/a/results.json"
    file.write_text(file.read_text().replace('"reports": {}', '"reports": {"m": {"success": {"mean": 1.0}}}'))
    [model] = evaluation(make_index(tmp_path / "run"), "a")["models"]
    assert model["report"]["success"]["mean"] == 0.5


def test_results_that_change_are_read_again(tmp_path: Path, make_index: Make):
    results(tmp_path / "run/a", [True, False])
    index = make_index(tmp_path / "run")
    assert evaluation(index, "a")["models"][0]["report"]["episodes"] == 2
    results(tmp_path / "new", [True, False, True])
    (tmp_path / "new/results.json").rename(tmp_path / "run/a/results.json")
    assert evaluation(index, "a")["models"][0]["report"]["episodes"] == 3


def test_files_that_are_no_results_are_said(tmp_path: Path, make_index: Make):
    for name, text in (("a", "{}"), ("b", "nonsense"), ("c", "[" * 10_000)):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "results.json").write_text(text)
    index = make_index(tmp_path / "run")
    for name in ("a", "b", "c", "d", "../run/a"):
        with pytest.raises(MissingError):
            evaluation(index, name)
