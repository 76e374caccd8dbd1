from pathlib import Path

import pytest

from bough.report.evaluated import Measured, Subject, find_subject, gate_notes, measured, section
from bough.report.lineage import base_model
from tests.report import folders

BASE = base_model("smollm2")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folders.stage(tmp_path / "sft", "sft")
    folders.stage(tmp_path / "dpo", "dpo", model=str(tmp_path / "sft/final"))
    return tmp_path


def subject(runs: Path, *evaluations: Path) -> Subject:
    return find_subject(runs / "dpo", list(evaluations))


def text(found: list[Measured]) -> str:
    return "\n\n".join(section(found, []))


def test_models_of_several_evaluations_of_the_same_tasks_stand_in_one_table(runs: Path):
    one = folders.evaluation(runs / "e1", {"smollm2": "0000000011", str(runs / "sft/final"): "0000011111"})
    two = folders.evaluation(runs / "e2", {str(runs / "dpo/final"): "1111111111", "expert": "1111111111"})
    [found] = measured(subject(runs, one, two), BASE)
    base = "HuggingFaceTB/SmolLM2-135M-Instruct (base)"
    assert list(found.reports) == [base, "after sft", "this adapter", "expert"]
    shown = text([found])
    # Wilson's interval of 2, 5 and 10 in 10.
    assert f"| {base} | 20.0% (5.7–51.0) | 10 |" in shown
    assert "| after sft | 50.0% (23.7–76.3) | 10 |" in shown
    assert "| **this adapter** | 100.0% (72.2–100.0) | 10 |" in shown
    assert "this adapter against HuggingFaceTB/SmolLM2-135M-Instruct (base): +80.0 points" in shown.replace("\\", "")
    assert "Holm's correction for 3 comparisons" in shown


def test_other_tasks_stand_in_another_table(runs: Path):
    one = folders.evaluation(runs / "e1", {str(runs / "dpo/final"): "11"})
    two = folders.evaluation(runs / "e2", {str(runs / "dpo/final"): "10"}, seed=1)
    three = folders.evaluation(runs / "e3", {str(runs / "dpo/final"): "10"}, options={"types": ["a"]})
    fewer = folders.evaluation(runs / "e4", {str(runs / "dpo/final"): "1"})
    twice = folders.evaluation(runs / "e5", {str(runs / "dpo/final"): "11"}, attempts=2)
    others = folders.evaluation(runs / "e6", {str(runs / "dpo/final"): "11"})
    file = others / "results.json"
    file.write_text(file.read_text().replace('"digest": "d0"', '"digest": "other"'))
    found = measured(subject(runs, one, two, three, fewer, twice, others), BASE)
    assert [one.own for one in found] == ["this adapter"] * 6
    assert "with the same seeds: 1 task, split `unseen`" in text([found[3]])


def test_evaluations_that_stopped_early_stand_in_one_table_where_they_began_alike(runs: Path):
    one = folders.evaluation(runs / "e1", {"a": "1" * 20}, stop_width=0.5)
    two = folders.evaluation(runs / "e2", {"b": "0" * 30}, stop_width=0.5)
    [found] = measured(subject(runs, one, two), BASE)
    assert list(found.reports) == ["a", "b"]
    assert "with the same seeds, until the result was clear: up to 30 tasks, split `unseen`" in text([found])


def test_a_whole_model_knows_its_own_evaluation(runs: Path):
    final = runs / "dpo/final"
    (final / "adapter_config.json").rename(final / "config.json")
    [found] = measured(subject(runs, folders.evaluation(runs / "e1", {str(final): "11", "expert": "10"})), BASE)
    assert found.own == "this model" and "| **this model** | 100.0%" in text([found])


def test_the_same_model_twice_is_told_apart_unless_it_is_the_same(runs: Path):
    one = folders.evaluation(runs / "e1", {"expert": "11"})
    two = folders.evaluation(runs / "e2", {"expert": "11"})
    three = folders.evaluation(runs / "e3", {"expert": "10"})
    [found] = measured(subject(runs, one, two, three), BASE)
    assert list(found.reports) == ["expert", "expert (e3)"] and found.own is None


def test_an_adapter_given_beside_its_base_is_known(runs: Path):
    folder = folders.evaluation(runs / "e1", {"smollm2": "11"})
    file = folder / "results.json"
    file.write_text(file.read_text().replace('"settings": {}', f'"settings": {{"adapter": "{runs}/dpo/final"}}'))
    [found] = measured(subject(runs, folder), BASE)
    assert found.own == "this adapter"


def test_a_built_in_model_is_no_folder_of_its_name(runs: Path, monkeypatch: pytest.MonkeyPatch):
    (runs / "smollm2").mkdir()
    monkeypatch.chdir(runs)
    [found] = measured(subject(runs, folders.evaluation(runs / "e1", {"smollm2": "11"})), BASE)
    assert list(found.reports) == ["HuggingFaceTB/SmolLM2-135M-Instruct (base)"]


def test_models_that_cannot_be_compared_are_said_to_be(runs: Path):
    one = folders.evaluation(runs / "e1", {"a": "10", "b": "11"})
    file = one / "results.json"
    file.write_text(file.read_text().replace('"digest": "d0"', '"digest": "other"', 1))
    assert "cannot be compared with each other: a and b played different tasks" in text(
        measured(subject(runs, one), BASE)
    )


def test_failures_and_types_are_counted_where_there_are_any(runs: Path):
    folder = folders.evaluation(runs / "e1", {"a": "100"})
    file = folder / "results.json"
    content = file.read_text().replace('"stop": null', '"stop": "loop"').replace('"type": null', '"type": "heat"', 1)
    file.write_text(content.replace('"type": null', '"type": "cool"'))
    shown = text(measured(subject(runs, folder), BASE))
    assert "| `loop` | 2 |" in shown
    assert "| `heat` | 100.0%" in shown and "| `cool` | 0.0%" in shown


def test_without_evaluations_it_is_said(runs: Path):
    assert text(measured(subject(runs), BASE)) == "This model has not been evaluated in an environment."


def test_what_a_gate_said_has_the_cards_names(tmp_path: Path):
    run = folders.recipe(tmp_path / "run", {"eval": {"name": "before"}}, {"sft": {}}, {"eval": {"name": "after"}})
    folders.evaluation(run / "01-before", {"smollm2": "00"})
    folders.stage(run / "02-sft", "sft")
    weights = str(run / "02-sft/final")
    folders.evaluation(run / "03-after", {weights: "11"}, goes_on_with="02-sft/final")
    record = run / "03-after/stage.json"
    record.write_text(record.read_text().replace('"note": ""', f'"note": "{weights} is better than smollm2"'))
    notes = gate_notes(find_subject(run, []), BASE)
    assert notes == ["this adapter is better than HuggingFaceTB/SmolLM2-135M-Instruct (base)"]
