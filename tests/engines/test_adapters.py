"""Which adapters an engine keeps."""

from __future__ import annotations

from pathlib import Path

from bough.engines.vllm import LoadedAdapters, delete_folders


def loaded(adapters: LoadedAdapters, folder: Path, *, temporary: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    adapters.loaded(adapters.new(folder, "actor", temporary=temporary))


def test_an_old_adapter_goes_when_its_last_answer_has_ended(tmp_path):
    adapters = LoadedAdapters()
    loaded(adapters, tmp_path / "one")
    with adapters.using() as first, adapters.using() as again:
        assert first is again
        loaded(adapters, tmp_path / "two")
        assert adapters.take_unused() == []
        with adapters.using() as second:
            assert second is not first
    loaded(adapters, tmp_path / "three")
    assert adapters.take_unused() == [first, second]
    assert adapters.take_unused() == [], "each is unloaded once"


def test_names_and_numbers_never_come_twice(tmp_path):
    adapters = LoadedAdapters()
    first, second = (adapters.new(tmp_path, "actor", temporary=False) for _ in range(2))
    assert first.name != second.name and first.number != second.number
    assert first.policy == second.policy == "actor"


def test_only_folders_that_were_written_for_the_engine_are_deleted(tmp_path):
    adapters = LoadedAdapters()
    loaded(adapters, tmp_path / "mine")
    loaded(adapters, tmp_path / "users", temporary=False)
    delete_folders(adapters.take_all())
    assert [folder.name for folder in tmp_path.iterdir()] == ["users"]
    assert adapters.newest is None and adapters.take_all() == []
