import shutil
from pathlib import Path

import pytest

from bough.data.writer import Writer
from bough.errors import InputError
from bough.report.lineage import lineage, read_data, read_stage
from bough.types import Message, Pair, Task, Turn
from tests.report import folders


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folders.stage(tmp_path / "sft", "sft", train_file="sft.jsonl")
    folders.stage(tmp_path / "dpo", "dpo", model=str(tmp_path / "sft/final"), train_file="pairs.jsonl", beta=0.2)
    world = {"environment": "household", "max_steps": 5}
    folders.stage(tmp_path / "grpo", "grpo", model="smollm2", adapter=tmp_path / "dpo/final", **world)
    return tmp_path


def test_weights_lead_back_to_the_model_before_all_stages(runs: Path):
    found = lineage(runs / "grpo")
    assert [stage.verb for stage in found.stages] == ["sft", "dpo", "grpo"]
    assert [stage.name for stage in found.stages] == ["sft", "dpo", "grpo"]
    assert (found.base, found.start, found.last.folder) == ("smollm2", None, runs / "grpo")


def test_a_run_that_was_moved_keeps_its_lineage(runs: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("moved") / "copy"
    shutil.move(runs, elsewhere)
    found = lineage(elsewhere / "grpo")
    assert [stage.folder for stage in found.stages] == [elsewhere / name for name in ("sft", "dpo", "grpo")]


def test_an_adapter_of_unknown_origin_is_named_with_its_base(runs: Path):
    (runs / "mine").mkdir()
    (runs / "mine/adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    folders.stage(runs / "later", "dpo", model=str(runs / "mine"))
    found = lineage(runs / "later")
    assert (found.base, found.start, len(found.stages)) == ("org/base", "mine", 1)


def test_a_built_in_model_is_no_folder_of_its_name(runs: Path, monkeypatch: pytest.MonkeyPatch):
    (runs / "smollm2").mkdir()
    (runs / "smollm2/adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    monkeypatch.chdir(runs)
    assert lineage(runs / "sft").base == "smollm2"


def test_a_circle_is_an_error(tmp_path: Path):
    folders.stage(tmp_path / "a", "sft", model=str(tmp_path / "b/final"))
    folders.stage(tmp_path / "b", "sft", model=str(tmp_path / "a/final"))
    with pytest.raises(InputError, match="are circular"):
        lineage(tmp_path / "a")


def test_a_stage_knows_its_numbers_and_what_its_settings_would_have_been(runs: Path):
    stage = read_stage(runs / "dpo")
    assert (stage.report["step"], stage.metrics[-1]["loss"]) == (12, 1.25)
    assert stage.ledgers[0]["dropped"] == {"too_long": 2}
    assert (stage.settings["beta"], stage.defaults["beta"]) == (0.2, 0.1)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a: [", "not YAML"),
        ("- a", "must be a mapping of settings"),
        ("beta: 1", "not the settings of a training stage"),
    ],
)
def test_settings_that_are_none_are_named(runs: Path, content: str, complaint: str):
    (runs / "sft/config.yaml").write_text(content)
    with pytest.raises(InputError, match=complaint) as error:
        lineage(runs / "dpo")
    assert "sft/config.yaml" in str(error.value)


def test_a_broken_ledger_is_named_and_a_missing_one_is_none(runs: Path):
    (runs / "sft/ledger.json").write_text("{")
    with pytest.raises(InputError, match=r"ledger\.json: cannot be read as JSON"):
        read_stage(runs / "sft")
    (runs / "sft/ledger.json").unlink()
    assert read_stage(runs / "sft").ledgers == []


def test_data_leads_back_to_the_episodes_it_was_made_of(tmp_path: Path):
    expert = folders.collection(tmp_path / "01-expert")
    file = folders.pairs(tmp_path / "02-pairs/pairs.jsonl", [expert / "trajectories.jsonl"], {"loop": 3})
    found = read_data(str(file), tmp_path / "03-dpo")
    assert (found.name, found.reasons) == ("pairs.jsonl", {"loop": 3})
    [source] = found.sources
    assert (source.name, source.played["episodes"], source.settings["model"]) == ("01-expert", 40, "expert")
    assert read_data(str(expert), tmp_path / "03-sft").played["success_rate"] == 0.925


def test_reasons_without_a_ledger_are_counted_in_the_file(tmp_path: Path):
    start = [Message(role="user", content="go")]
    sides = [[Turn(reply=Message(role="assistant", content=word))] for word in ("a", "b")]
    with Writer(tmp_path / "pairs.jsonl") as writer:
        for reason in ("loop", "loop", "wasted_step", None):
            writer.write(Pair(task=Task(id="t"), start=start, chosen=sides[0], rejected=sides[1], reason=reason))
    assert read_data("pairs.jsonl", tmp_path).reasons == {}, "beside the folder is not in it"
    assert read_data(str(tmp_path / "pairs.jsonl"), tmp_path / "dpo").reasons == {"loop": 2, "wasted_step": 1}


def test_a_data_set_on_the_hub_is_known_by_its_id(tmp_path: Path):
    assert read_data(str(Path("hf://org/name/train")), tmp_path).hub_id == "org/name"
    assert read_data("gone.jsonl", tmp_path).hub_id is None
