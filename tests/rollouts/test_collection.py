from pathlib import Path
from typing import Any

import pytest

from bough.config.rollouts import CollectConfig
from bough.errors import InputError
from bough.rollouts.collection import Collection
from bough.types import Message, Task, Trajectory


def config(folder: Path, **more: Any) -> CollectConfig:
    return CollectConfig(environment="household", output=folder, **more)


def episode(id: str) -> Trajectory:
    return Trajectory(id=id, task=Task(id="t"), start=[Message(role="user", content="Go.")], turns=[], success=True)


def test_what_was_added_is_on_file_at_once(tmp_path: Path):
    with Collection(config(tmp_path / "c")) as collection:
        collection.add(episode("t#0"), [])
        assert [record.id for record in collection.read()] == ["t#0"]


def test_a_collection_goes_on_where_it_stopped(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("t#0"), [])
    with (tmp_path / "trajectories.jsonl").open("a") as file:
        file.write('{"bough": "trajectory/1", "id": "t#1", "ta')
    with Collection(config(tmp_path, tasks=99, concurrency=2)) as collection:
        assert collection.finished == {"t#0"}
        collection.add(episode("t#1"), [])
        assert [record.id for record in collection.read()] == ["t#0", "t#1"]


def test_other_settings_need_another_folder(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("t#0"), [])
    with pytest.raises(InputError, match=r"(?s)other settings.*temperature was 1.0, now 0.5"):
        Collection(config(tmp_path, temperature=0.5))
    with Collection(config(tmp_path, temperature=0.5, overwrite=True)) as collection:
        assert collection.finished == set()


def test_overwriting_spares_a_folder_that_is_no_collection(tmp_path: Path):
    (tmp_path / "precious.txt").write_text("mine")
    with Collection(config(tmp_path, overwrite=True)):
        assert (tmp_path / "precious.txt").exists()


def test_images_lie_beside_their_trajectory_and_never_elsewhere(tmp_path: Path):
    with Collection(config(tmp_path / "c")) as collection:
        collection.add(episode("../../evil/t#0"), [(0, b"png"), (2, b"png2")])
        [record] = collection.read()
    assert record.info["images"] == ["images/_evil_t#0/000.png", "images/_evil_t#0/002.png"]
    assert (tmp_path / "c/images/_evil_t#0/002.png").read_bytes() == b"png2"
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_finished_collection_is_in_the_order_of_its_tasks(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        for id in ("b#0", "a#1", "stranger", "a#0"):
            collection.add(episode(id), [])
        collection.finish(["a#0", "a#1", "b#0"])
        assert [record.id for record in collection.read()] == ["a#0", "a#1", "b#0", "stranger"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "trajectories.jsonl"]
