import re
import shutil
from html import escape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from bough.errors import InputError
from bough.models.gguf_read import Header, write_source
from bough.report.lineage import base_model, code, fenced, lineage, plain, read_stage
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


def test_an_adapter_is_for_the_last_weights_that_were_trained_whole(tmp_path: Path):
    folders.stage(tmp_path / "sft", "sft", use_lora=False)
    folders.stage(tmp_path / "dpo", "dpo", model=str(tmp_path / "sft/final"))
    assert lineage(tmp_path / "dpo").base == str(tmp_path / "sft")
    assert lineage(tmp_path / "sft").base == "smollm2"


def test_a_run_that_was_moved_keeps_its_lineage(runs: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("moved") / "copy"
    shutil.move(runs, elsewhere)
    found = lineage(elsewhere / "grpo")
    assert [stage.folder for stage in found.stages] == [elsewhere / name for name in ("sft", "dpo", "grpo")]


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


def test_settings_that_are_none_are_named(runs: Path):
    (runs / "sft/config.yaml").write_text("beta: 1")
    with pytest.raises(InputError, match=r"sft/config\.yaml.*not the settings of a training stage"):
        lineage(runs / "dpo")


def test_a_broken_ledger_is_named_and_a_missing_one_is_none(runs: Path):
    (runs / "sft/ledger.json").write_text("{")
    with pytest.raises(InputError, match=r"ledger\.json: cannot be read as JSON"):
        read_stage(runs / "sft")
    (runs / "sft/ledger.json").unlink()
    assert read_stage(runs / "sft").ledgers == []


@pytest.mark.parametrize("name", ["smollm2", "/home/ann/.cache/bough/models/smollm2-135m-instruct-1"])
def test_the_default_model_has_a_name_on_the_hub_and_a_licence(name: str):
    found = base_model(name)
    assert (found.hub_id, found.license) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")
    assert "4-bit" in found.note


def test_a_folder_is_known_by_its_last_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert base_model(str(tmp_path / "mine")).shown == "mine"
    assert base_model(str(tmp_path / "mine")).hub_id is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert base_model("models/mine").hub_id is None, "a folder that looks like a hub id is a folder"
    assert base_model("").shown == "a model that is not named"


@pytest.mark.parametrize("name", ["tiny", "/x/models/tiny-llama-1c9ec763", "tiny-qwen3"])
def test_a_model_for_tests_is_said_to_be_one(name: str):
    found = base_model(name)
    assert found.hub_id is None and "random weights" in found.note


def test_a_hub_id_is_itself_and_what_the_user_says_wins():
    assert base_model("Qwen/Qwen3-4B").hub_id == "Qwen/Qwen3-4B"
    assert base_model("smollm2", "org/other").hub_id == "org/other"
    assert base_model("smollm2", "org/other").license is None


def test_a_gguf_file_is_named_whether_it_is_given_itself_or_as_the_folder_made_of_it(tmp_path: Path):
    folder = tmp_path / f"gguf-{'0' * 24}-1"
    folder.mkdir()
    assert base_model(str(folder)).name == folder.name, "made before its file was noted"
    header = Header({"general.repo_url": "https://huggingface.co/org/small", "general.base_model.0.name": "x"}, {})
    write_source(tmp_path / "small-q4.gguf", header, folder)
    found = base_model(str(folder))
    assert (found.name, found.hub_id) == ("small-q4.gguf", "org/small") and "GGUF file small-q4.gguf" in found.note
    assert base_model(str(tmp_path / "gone.gguf")).name == "gone.gguf"


def test_nothing_in_plain_text_is_markup():
    hostile = "<script>alert(1)</script> [a](javascript:x) **b** `c` | d\n# e http://evil.example www.evil.example @all"
    shown = plain(hostile)
    assert "\n" not in shown
    for mark in ("<", ">", "[", "]", "*", "`", "|", "#", "@"):
        assert not re.search(rf"(?<!\\){re.escape(mark)}", shown), mark
    assert "http://" not in shown and "www." not in shown
    assert MarkdownIt("commonmark").render(shown) == f"<p>{escape(hostile.replace(chr(10), ' '), quote=False)}</p>\n"
    assert re.sub(r"\\(.)", r"\1", shown) == hostile.replace("\n", " ")


def test_control_characters_are_made_visible():
    assert plain("a\x1b[31mb\u202ec") == "a␛\\[31mb�c"
    assert "\x1b" not in fenced("a\x1b[31m") and "\x1b" not in code("a\x1b[31m")


def test_a_code_span_holds_ticks_and_bars():
    assert code("loop") == "`loop`"
    assert code("a|b") == "`a\\|b`"
    assert code("a``b") == "``` a``b ```"
    assert code("a\nb") == "`a b`"
    assert code("  ") == "`–`"


def test_nothing_ends_a_block_but_its_fence():
    assert MarkdownIt().render(fenced("```\n<b>")) == "<pre><code>```\n&lt;b&gt;\n</code></pre>\n"
    block = fenced("x\n```\n````\n<b>\r\n", "python")
    assert block == "`````python\nx\n```\n````\n<b>\n`````"
    assert fenced("x") == "```\nx\n```"
