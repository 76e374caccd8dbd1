import json
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.report.evaluated import Subject, find_subject
from bough.report.publish import make_release
from tests.report import folders


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    final = folders.stage(tmp_path / "sft", "sft") / "final"
    (final / "README.md").write_text("# card")
    for stray in ("optimizer.pt", ".hidden.json", "training_args.bin", "notes.txt"):
        (final / stray).write_text("x")
    (final / "checkpoints").mkdir()
    return find_subject(tmp_path / "sft", [])


def test_only_what_loads_the_model_is_handed_over(subject: Subject):
    assert set(make_release(subject, None).files) == {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip


def test_the_base_is_named_as_others_know_it(subject: Subject, tmp_path: Path):
    release = make_release(subject, None)
    before = json.loads((subject.weights / "adapter_config.json").read_text())
    after = json.loads(release.changed["adapter_config.json"])
    assert after == before | {"base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    assert str(Path.home()) in before["base_model_name_or_path"], "the folder itself is left as it is"
    other = json.loads(make_release(subject, "org/base").changed["adapter_config.json"])
    assert other["base_model_name_or_path"] == "org/base"
    assert release.size("README.md") == 6
    assert release.size("adapter_config.json") == len(release.changed["adapter_config.json"])


def test_the_folder_that_is_uploaded_holds_the_files_as_they_go_out(subject: Subject, tmp_path: Path):
    (tmp_path / "out").mkdir()
    release = make_release(subject, None)
    release.fill(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(release.files)
    assert (tmp_path / "out/adapter_model.safetensors").read_bytes() == b"weights"
    assert (tmp_path / "out/adapter_config.json").read_text() == release.changed["adapter_config.json"]


def test_what_is_missing_is_said(subject: Subject, tmp_path: Path):
    folders.stage(tmp_path / "other", "sft", model="/models/mine")
    other = find_subject(tmp_path / "other", [])
    with pytest.raises(InputError, match="no model card yet; `bough card"):
        make_release(other, None)
    (other.weights / "README.md").write_text("# card")
    with pytest.raises(InputError, match=r"only known as mine.*--base-model org/name"):
        make_release(other, None)
    (subject.weights / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        make_release(subject, None)


def test_a_whole_model_goes_out_as_it_is(subject: Subject):
    (subject.weights / "adapter_config.json").rename(subject.weights / "config.json")
    (subject.weights / "adapter_model.safetensors").rename(subject.weights / "model-00001-of-00001.safetensors")
    release = make_release(subject, None)
    assert release.changed == {} and "model-00001-of-00001.safetensors" in release.files
