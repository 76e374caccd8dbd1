"""A generation on disk is read only if it is whole."""

from pathlib import Path

import pytest

from bough.errors import InputError
from bough.experiments.generation import OPTIMIZER, Generation, Used, writing
from tests.experiments.adapters import adapter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a generation with two members."""
    with writing(tmp_path, 3, trained=True, used=Used(updates=6)) as draft:
        adapter(draft / "a", 1)
        adapter(draft / "b", 2)
    return tmp_path / "generation-00003-trained"


def test_a_whole_generation_is_read(folder: Path):
    found = Generation.read(folder)
    assert (found.number, found.trained, found.used.updates, found.members) == (3, True, 6, ["a", "b"])


@pytest.mark.parametrize("name", [OPTIMIZER, "adapter_model.safetensors", "member.json"])
def test_a_member_without_one_of_its_files_is_refused(folder: Path, name: str):
    (folder / "a" / name).unlink()
    with pytest.raises(InputError, match=f"lacks a/{name}; delete"):
        Generation.read(folder)


def test_a_damaged_list_of_files_is_told(folder: Path):
    (folder / "state.json").write_text('{"used": {}, "losses": {}, "files": {"a": 1}}')
    with pytest.raises(InputError, match=r"is missing or damaged .*delete that folder"):
        Generation.read(folder)


@pytest.mark.parametrize("resumed", [True, False])
def test_what_a_killed_run_had_not_quite_removed_is_removed(folder: Path, resumed: bool):
    doomed = folder.with_name(".generation-00001-trained.old")
    (doomed / "a").mkdir(parents=True)
    if resumed:
        found = Generation.newest(folder.parent)
        assert found is not None and found.number == 3
    else:
        with writing(folder.parent, 4, trained=False, used=Used(updates=6)) as draft:
            adapter(draft / "a", 1)
    assert not doomed.exists() and folder.is_dir()
