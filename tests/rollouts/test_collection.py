import asyncio
import errno
import json
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from bough.config.groups import CollectConfig
from bough.data.bough import FORMAT
from bough.errors import BoughError, InputError
from bough.rollouts.collect import Attempt, Collection
from bough.rollouts.rescore import sampled_calls
from bough.types import Call, Message, Task, Trajectory, Turn


def config(folder: Path, **more: Any) -> CollectConfig:
    return CollectConfig(environment="household", output=folder, **more)


def episode(id: str, task: Task | None = None) -> Trajectory:
    start = [Message(role="user", content="Go.")]
    return Trajectory(id=id, task=task or Task(id="t"), start=start, turns=[], success=True)


def test_an_episode_is_written_off_the_event_loop_and_also_if_its_caller_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    may_write, threads = threading.Event(), set[str]()
    write = Collection.add

    def held(self: Collection, trajectory: Trajectory, images: Any) -> None:
        threads.add(threading.current_thread().name)
        may_write.wait(60)
        write(self, trajectory, images)

    async def cancelled(collection: Collection) -> None:
        writing = [asyncio.ensure_future(collection.add_in_thread(episode(f"t#{n}"), [])) for n in range(3)]
        await asyncio.sleep(0)
        for one in writing:
            one.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        assert not collection.finished, "the event loop went on"
        may_write.set()

    monkeypatch.setattr(Collection, "add", held)
    with Collection(config(tmp_path)) as collection:
        asyncio.run(cancelled(collection))
    assert [record.id for record in list(Collection(config(tmp_path)))] == ["t#0", "t#1", "t#2"]
    assert threading.current_thread().name not in threads


def test_a_collection_goes_on_where_it_stopped(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("t#0"), [])
    with (tmp_path / "trajectories.jsonl").open("a") as file:
        file.write('{"bough": "trajectory/1", "id": "t#1", "ta')
    with Collection(config(tmp_path, tasks=99, concurrency=2)) as collection:
        assert set(collection.finished) == {"t#0"}
        collection.add(episode("t#1"), [])
        assert [record.id for record in list(collection)] == ["t#0", "t#1"]


def test_other_settings_need_another_folder(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("t#0"), [])
    with pytest.raises(InputError, match=r"(?s)different settings.*temperature was 1.0, now 0.5"):
        Collection(config(tmp_path, temperature=0.5))
    with Collection(config(tmp_path, temperature=0.5, overwrite=True)) as collection:
        assert not collection.finished
    with Collection(config(tmp_path, temperature=0.7)) as collection:
        assert not collection.finished, "settings without an episode bind no later start"


def test_images_lie_beside_their_trajectory_and_never_elsewhere(tmp_path: Path):
    with Collection(config(tmp_path / "c")) as collection:
        for id in ("t#0", "../../evil/t#0", ".._evil_t#0", "x" * 300):
            collection.add(episode(id), [(0, b"png"), (2, id.encode())])
        records = list(collection)
    assert records[0].info["images"] == ["images/t#0/000.png", "images/t#0/002.png"]
    for record in records:
        last = record.info["images"][-1]  # type: ignore[index]
        assert (tmp_path / "c" / str(last)).read_bytes() == record.id.encode(), "each has its own"
    assert len(list((tmp_path / "c/images").iterdir())) == 4 and [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_finished_collection_is_in_the_order_of_its_tasks(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        for id in ("b#0", "a#1", "stranger", "a#0"):
            collection.add(episode(id), [])
        collection.finish(["a#0", "a#1", "b#0"])
        assert [record.id for record in list(collection)] == ["a#0", "a#1", "b#0", "stranger"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "trajectories.jsonl", "weights.json"]


def test_overwriting_forgets_the_collection_and_nothing_else(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("t#0"), [(0, b"png")])
        collection.keep_rescored({"t#0": {0: [-0.5]}})
        collection.report({"episodes": 1})
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "plots").mkdir()
    with Collection(config(tmp_path, overwrite=True)) as collection:
        assert not collection.finished
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["config.yaml", "notes.txt", "plots", "trajectories.jsonl", "weights.json"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "the file is empty"), ("model: [", "1: not YAML"), ("- a\n", "must be a mapping of settings")],
)
def test_settings_that_cannot_be_read_are_an_input_error(text: str, complaint: str, tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("t#0"), [])
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=rf"config\.yaml:.*{complaint}.*give another --output, or --overwrite"):
        Collection(config(tmp_path))
    with Collection(config(tmp_path, overwrite=True)) as collection:
        assert not collection.finished


def test_a_model_that_was_trained_anew_needs_another_folder(tmp_path: Path):
    model, folder = tmp_path / "final", tmp_path / "episodes"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"one")
    for _ in range(2):
        with Collection(config(folder, model=str(model))) as collection:
            collection.add(episode("t#0"), [])
    os.utime(model / "model.safetensors", ns=(1, 1))
    with pytest.raises(InputError, match=r"final has changed since its episodes in .*; give another --output"):
        Collection(config(folder, model=str(model)))
    (folder / "weights.json").write_text("{")
    with pytest.raises(InputError, match="has changed since"):
        Collection(config(folder, model=str(model)))
    with Collection(config(folder, model=str(model), overwrite=True)):
        assert json.loads((folder / "weights.json").read_text()) == [["model.safetensors", 3, 1]]


def test_what_is_missing_is_what_is_not_on_file(tmp_path: Path):
    data: dict[str, JsonValue] = {"b": 1.0, "a": [1, None, 1e22, "é"], "c": float("nan"), "d": -0.0}
    task = Task(id="t", environment="w", seed=3, data=data)
    wanted = [Attempt("t#0", task, 1), Attempt("t#1", task, 2)]
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("t#0", task), [])
        assert collection.missing(wanted) == wanted[1:]
    with Collection(config(tmp_path)) as collection:
        assert collection.missing(wanted) == wanted[1:], "read back it is still the same task"
        turned = task.model_copy(update={"data": dict(reversed(data.items()))})
        assert collection.missing([Attempt("t#0", turned, 1)]) == []


@pytest.mark.parametrize("change", [{"seed": 4}, {"data": {"goal": 3}}, {"data": {"goal": 2, "more": 1}}])
def test_another_task_of_the_same_name_needs_another_folder(change: Any, tmp_path: Path):
    task = Task(id="t", seed=3, data={"goal": 2})
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("t#0", task), [])
    other = task.model_copy(update=change)
    with Collection(config(tmp_path)) as collection:
        with pytest.raises(InputError, match=r"(?s)episodes of different tasks.*--output, or --overwrite:\n  - t#0$"):
            collection.missing([Attempt("t#0", other, 1), Attempt("t#1", other, 1)])
        assert len(collection.missing([Attempt("t#1", other, 1)])) == 1


def test_a_report_counts_only_if_it_is_of_every_episode(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        assert collection.old_report() is None
        collection.add(episode("t#0"), [])
        collection.report({"episodes": 1})
        assert collection.old_report() == {"episodes": 1}
        collection.add(episode("t#1"), [])
        assert collection.old_report() is None
        (tmp_path / "report.json").write_text("[")
        assert collection.old_report() is None


def test_a_collection_is_ordered_and_read_without_holding_it_in_memory(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        lines = [row(number) for number in range(300)]
        (tmp_path / "trajectories.jsonl").write_text("".join(reversed(lines)))
        del lines
        tracemalloc.start()
        try:
            collection.finish([f"t{number}#0" for number in range(300)])
            successes = sum(record.success is True for record in collection)
            chosen = sampled_calls(collection, 4)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert successes == 300 and len(chosen) == 4
    assert next(iter(collection)).id == "t0#0"
    assert peak < (tmp_path / "trajectories.jsonl").stat().st_size / 2


def row(number: int) -> str:
    """An episode as it stands in the file, of a few kilobytes."""
    call = Call(prompt_ids=list(range(500)), completion_ids=[4], logprobs=[-0.5])
    turn = Turn(reply=Message(role="assistant", content="Go." * 500), call=call)
    record = episode(f"t{number}#0").model_copy(update={"turns": [turn]})
    return json.dumps(FORMAT.write(record) if FORMAT.write else None) + "\n"


def test_a_disk_that_is_full_leaves_the_episodes_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Collection(config(tmp_path)) as collection:
        for id in ("b#0", "a#0"):
            collection.add(episode(id), [])
        monkeypatch.setattr("bough.files.sync", full)
        with pytest.raises(BoughError, match=r"cannot be sorted \(No space left on device\); its episodes are safe"):
            collection.finish(["a#0", "b#0"])
        assert [record.id for record in collection] == ["b#0", "a#0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "trajectories.jsonl", "weights.json"]


def test_a_collection_that_is_being_written_is_not_deleted(tmp_path: Path):
    with Collection(config(tmp_path)) as collection:
        collection.add(episode("a#0"), [])
        with pytest.raises(BoughError, match="another process"):
            Collection(config(tmp_path, overwrite=True))
        assert [record.id for record in collection] == ["a#0"]


def test_a_start_that_failed_leaves_nothing(tmp_path: Path):
    with pytest.raises(RuntimeError), Collection(config(tmp_path / "runs/c")):
        raise RuntimeError("no such model")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RuntimeError), Collection(config(tmp_path)):
        raise RuntimeError("no such model")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.yaml", "command: sft\n"), ("report.json", "{}"), ("trajectories.jsonl", '{"messages": []}\n')],
)
def test_files_of_somebody_else_are_neither_replaced_nor_removed(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"contains {name}, but no collection; give another --output"):
        Collection(config(tmp_path))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_no_setting_holds_an_absolute_path(tmp_path: Path):
    model, code = tmp_path / "sft/final", tmp_path / "shop.py"
    model.mkdir(parents=True)
    given: dict[str, Any] = {"model": str(model), "options": {"file": str(tmp_path / "a.jsonl")}, "adapter": model}
    settings = CollectConfig(environment=f"{code}:Shop", output=tmp_path / "c", **given)
    with Collection(settings) as collection:
        collection.add(episode("t#0"), [])
    text = (tmp_path / "c/config.yaml").read_text()
    assert str(tmp_path) not in text and "model: ../sft/final" in text and "name: ../shop.py:Shop" in text
    with Collection(settings) as collection:
        assert collection.finished, "the same settings resume"
    with pytest.raises(InputError, match=r"model was '\.\./sft/final', now '\.\./sft'"):
        Collection(CollectConfig(**settings.flat_dump() | {"model": str(model.parent)}))


@pytest.mark.parametrize("name", ["trajectories.jsonl", "images"])
def test_a_link_in_the_folder_is_refused_before_anything_is_written(tmp_path: Path, name: str):
    folder, mine = tmp_path / "from_elsewhere", tmp_path / "mine"
    with Collection(config(folder)) as collection:
        collection.add(episode("t#0"), [])
    settings = (folder / "config.yaml").stat().st_ino
    if name == "images":
        mine.mkdir()
    else:
        (folder / name).rename(mine)
        with mine.open("a") as file:
            file.write("a last line without an end")
    before = None if mine.is_dir() else mine.read_bytes()
    (folder / name).symlink_to(mine)
    with pytest.raises(InputError, match=rf"{name} is a symbolic link.*--follow-links"):
        Collection(config(folder))
    assert before is None or mine.read_bytes() == before
    assert (folder / "config.yaml").stat().st_ino == settings


def test_overwriting_a_linked_file_removes_the_link_and_leaves_its_target(tmp_path: Path):
    with Collection(config(tmp_path / "c")) as collection:
        collection.add(episode("t#0"), [])
    (tmp_path / "c/trajectories.jsonl").rename(tmp_path / "mine")
    with (tmp_path / "mine").open("a") as file:
        file.write("a last line without an end")
    before = (tmp_path / "mine").read_bytes()
    (tmp_path / "c/trajectories.jsonl").symlink_to(tmp_path / "mine")
    with Collection(config(tmp_path / "c", overwrite=True)) as collection:
        collection.add(episode("t#0"), [])
    assert (tmp_path / "mine").read_bytes() == before and not (tmp_path / "c/trajectories.jsonl").is_symlink()


@pytest.mark.parametrize("linked", ["images/t#0", "images/t#0/000.png"])
def test_an_image_is_not_written_through_a_link(tmp_path: Path, linked: str):
    folder, mine = tmp_path / "c", tmp_path / "mine"
    with Collection(config(folder)):
        pass
    (folder / linked).parent.mkdir(parents=True)
    if linked.endswith(".png"):
        mine.write_text("precious")
    else:
        mine.mkdir()
        (mine / "000.png").write_text("precious")
    (folder / linked).symlink_to(mine)
    with Collection(config(folder)) as collection:
        if mine.is_dir():
            with pytest.raises(InputError, match="t#0 is a symbolic link"):
                collection.add(episode("t#0"), [(0, b"an image")])
        else:
            collection.add(episode("t#0"), [(0, b"an image")])
            assert (folder / linked).read_bytes() == b"an image"
    assert (mine / "000.png" if mine.is_dir() else mine).read_text() == "precious"
