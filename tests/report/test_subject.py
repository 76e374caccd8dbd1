import shutil
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.report.evaluated import find_subject
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
    with pytest.raises(InputError, match="there is no such folder"):
        find_subject(tmp_path / "none", [])
    with pytest.raises(InputError, match=r"neither a recipe\.yaml nor a config\.yaml"):
        find_subject(tmp_path, [])
    folders.stage(tmp_path / "sft", "sft")
    (tmp_path / "sft/final/adapter_config.json").unlink()
    with pytest.raises(InputError, match="has the stage finished"):
        find_subject(tmp_path / "sft", [])
    (tmp_path / "sft/recipe.yaml").write_text("stages: []\nnmae: x")
    with pytest.raises(InputError, match=r"recipe\.yaml is not a valid recipe"):
        find_subject(tmp_path / "sft", [])
