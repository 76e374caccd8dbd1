from pathlib import Path

import pytest

from bough.models.gguf_read import Header, write_source
from bough.report.lineage import base_model


@pytest.mark.parametrize("name", ["smollm2", "/home/ann/.cache/bough/models/smollm2-135m-instruct-1"])
def test_the_default_model_has_a_name_on_the_hub_and_a_licence(name: str):
    found = base_model(name)
    assert (found.hub_id, found.license) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")
    assert "4-bit" in found.note


def test_a_hub_id_is_itself():
    assert base_model("Qwen/Qwen3-4B").hub_id == "Qwen/Qwen3-4B"


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


def test_what_the_user_says_it_is_wins():
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
