import shutil
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.report.evaluated import Measured, Subject, find_subject, measured, section
from bough.report.lineage import base_model
from tests.report import folders

STAGES = [{"eval": {"name": "before"}}, {"sft": {}}, {"eval": {"name": "after", "gate": {"alpha": 0.05}}}]


def run(tmp_path: Path, *, goes_on_with: str = "02-sft/final", stages: list = STAGES) -> Path:
    folder = folders.recipe(tmp_path / "run", *stages, about="Finds things.")
    folders.evaluation(folder / "01-before", {"smollm2": "0" * 8}, goes_on_with="smollm2")
    folders.stage(folder / "02-sft", "sft")
    folders.evaluation(folder / "03-after", {str(folder / "02-sft/final"): "1" * 8}, goes_on_with=goes_on_with)
    return folder


def test_a_run_is_about_its_newest_weights_and_all_its_evaluations(tmp_path: Path):
    found = find_subject(run(tmp_path), [])
    assert (found.name, found.about, found.is_adapter) == ("made", "Finds things.", True)
    assert found.weights == tmp_path / "run/02-sft/final"
    assert [one.folder.name for one in found.evaluations] == ["01-before", "03-after"]


def test_weights_that_a_gate_sent_back_are_not_the_runs(tmp_path: Path):
    folder = run(tmp_path, goes_on_with="smollm2")
    with pytest.raises(InputError, match="the gates rejected all of them"):
        find_subject(folder, [])
    assert find_subject(folder / "02-sft", []).weights == folder / "02-sft/final", "but they can be asked for"


def test_a_record_cannot_make_other_weights_the_runs(tmp_path: Path):
    folders.stage(tmp_path / "private", "sft")
    for name in ("../private/final", str(tmp_path / "private/final")):
        with pytest.raises(InputError, match="the gates rejected all of them"):
            find_subject(run(tmp_path, goes_on_with=name), [])
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize("goes_on_with", ["02-sft/final", "04-dpo/final"])
def test_after_the_last_evaluation_the_run_says_which_weights_are_its(tmp_path: Path, goes_on_with: str):
    folder = run(tmp_path, stages=[*STAGES, {"dpo": {}}, {"eval": {"name": "later"}}])
    folders.stage(folder / "04-dpo", "dpo", model=str(folder / "02-sft/final"))
    folders.evaluation(folder / "05-later", {str(folder / "04-dpo/final"): "1"}, goes_on_with=goes_on_with)
    assert find_subject(folder, []).weights == folder / goes_on_with


def test_a_stage_that_has_not_finished_does_not_count(tmp_path: Path):
    folder = run(tmp_path, stages=[*STAGES, {"dpo": {}}])
    folders.stage(folder / "04-dpo", "dpo", model=str(folder / "02-sft/final"))
    record = folder / "04-dpo/stage.json"
    record.write_text(record.read_text().replace("true", "false"))
    assert find_subject(folder, []).weights == folder / "02-sft/final"


def test_a_stage_of_a_run_has_the_runs_evaluations(tmp_path: Path):
    folder = run(tmp_path)
    for place in ("02-sft", "02-sft/final"):
        found = find_subject(folder / place, [])
        assert (found.name, len(found.evaluations)) == ("made 02-sft", 2)


def test_a_stage_of_no_run_has_the_evaluations_that_are_named(tmp_path: Path):
    folders.stage(tmp_path / "sft", "sft")
    file = folders.evaluation(tmp_path / "eval", {"smollm2": "01"}) / "results.json"
    assert find_subject(tmp_path / "sft", []).evaluations == ()
    for named in (file, file.parent):
        [found] = find_subject(tmp_path / "sft/final", [named]).evaluations
        assert found.folder == tmp_path / "eval" and found.results.models[0].name == "smollm2"


def test_an_evaluation_on_a_file_is_none_in_a_world(tmp_path: Path):
    folder = run(tmp_path)
    (folder / "01-before/results.json").write_text('{"model": "smollm2", "perplexity": 2.0}')
    (folder / "recipe.yaml").write_text((folder / "recipe.yaml").read_text().replace('"gate": {"alpha": 0.05}', ""))
    (folder / "recipe.yaml").write_text((folder / "recipe.yaml").read_text().replace('"after", ', '"after"'))
    assert [one.folder.name for one in find_subject(folder, []).evaluations] == ["03-after"]


def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path):
    with pytest.raises(InputError, match=r"neither a recipe\.yaml nor a config\.yaml"):
        find_subject(tmp_path, [])
    folders.stage(tmp_path / "sft", "sft")
    (tmp_path / "sft/final/adapter_config.json").unlink()
    with pytest.raises(InputError, match="has the stage finished"):
        find_subject(tmp_path / "sft", [])
    (tmp_path / "sft/recipe.yaml").write_text("stages: []\nnmae: x")
    with pytest.raises(InputError, match=r"recipe\.yaml is not a valid recipe"):
        find_subject(tmp_path / "sft", [])


BASE = base_model("smollm2")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folders.stage(tmp_path / "sft", "sft")
    folders.stage(tmp_path / "dpo", "dpo", model=str(tmp_path / "sft/final"))
    return tmp_path


def subject(runs: Path, *evaluations: Path) -> Subject:
    return find_subject(runs / "dpo", list(evaluations))


def text(found: list[Measured]) -> str:
    return "\n\n".join(section(found))


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
