import os
import shutil
from pathlib import Path

import pytest

from bough.models import resolve as digest
from bough.models.resolve import file_digest, folder_digest, model_digest, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve("tiny"), tmp_path / "copy"))


def test_the_same_content_has_the_same_digest_wherever_it_is_and_whenever_it_was_written(folder: Path):
    os.utime(folder / "model.safetensors", (0, 0))
    assert model_digest(str(folder)) == model_digest("tiny") == folder_digest(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_one_changed_byte_changes_the_digest(folder: Path, file: str):
    before = folder_digest(folder)
    data = bytearray((folder / file).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / file).write_bytes(data)
    assert folder_digest(folder) != before


def test_a_new_a_missing_and_a_renamed_file_change_the_digest_and_a_note_does_not(folder: Path):
    before = folder_digest(folder)
    (folder / "README.md").write_text("hello")
    (folder / "checkpoints").mkdir()
    assert folder_digest(folder) == before
    (folder / "config.json").rename(folder / "other.json")
    assert folder_digest(folder) != before
    (folder / "other.json").unlink()
    assert folder_digest(folder) != before


def test_of_a_large_file_the_size_both_ends_and_evenly_spaced_blocks_count(tmp_path: Path):
    file = tmp_path / "large"

    def of(data: bytes) -> str:
        file.write_bytes(data)
        return file_digest(file, whole=64, block=4)

    content = bytes(range(250)) * 4
    before = of(content)
    assert of(content + b"x") != before
    for at in (0, 3, 996, 999):
        changed = bytearray(content)
        changed[at] ^= 1
        assert of(bytes(changed)) != before
    # As training does: every number a little different.
    assert of(bytes(value ^ 1 for value in content)) != before
    assert of(content) == before
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    assert file_digest(file, whole=2**20, block=2**16), "it costs no more than its samples"


def test_a_model_on_the_hub_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = {"org/known": str(tmp_path / "snapshots" / "c0ffee" / "config.json")}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, _: found.get(name))
    assert digest.model_digest("org/known") == "c0ffee"
    assert digest.model_digest("org/unknown") == "org/unknown"
