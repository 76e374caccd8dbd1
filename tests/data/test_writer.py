import os
import random
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bough.data.base import Sample
from bough.data.reader import Reader, read
from bough.data.writer import Writer, check_output
from bough.errors import BoughError, InputError
from bough.types import Call, Message, Turn
from tests.data.file_records import samples
from tests.data.killed_writer import trajectory
from tests.warm import Warm

ENDINGS = [".jsonl", ".jsonl.zst"]


@given(records=st.lists(samples, min_size=1, max_size=4))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_any_record_survives_the_disk_exactly(tmp_path: Path, records: list[Sample]):
    for ending in ENDINGS:
        path = tmp_path / f"{time.monotonic_ns()}{ending}"
        with Writer(path) as writer:
            for record in records:
                writer.write(record)
        assert list(read(path)) == records


def test_history_is_stored_once(tmp_path: Path):
    turns, seen = [], list(range(1000))
    for number in range(20):
        turns.append(
            Turn(reply=Message(role="assistant", content="x"), call=Call(prompt_ids=seen, completion_ids=[number]))
        )
        seen = [*seen, number, 7, 7]
    episode = trajectory(0).model_copy(update={"turns": turns})
    with Writer(tmp_path / "a.jsonl") as writer:
        writer.write(episode)
    assert (tmp_path / "a.jsonl").stat().st_size < 7000  # 20,000 tokens of prompt, 1,060 of them different
    assert list(read(tmp_path / "a.jsonl")) == [episode]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_torn_end_is_reported_by_the_reader_and_removed_by_the_next_writer(tmp_path: Path, ending: str, cut: int):
    path = tmp_path / f"a{ending}"
    for number in range(3):
        with Writer(path) as writer:
            writer.write(trajectory(number))
    os.truncate(path, path.stat().st_size - cut)
    reader = Reader(path)
    kept = [record.id for record in reader]
    # One byte short, a plain line lacks only its line end, and a frame only its checksum.
    assert kept == (["0", "1", "2"] if cut == 1 else ["0", "1"])
    whole = cut == 1 and ending == ".jsonl"
    assert reader.skipped["torn"] == (not whole)
    with Writer(path) as writer:
        assert bool(writer.torn_bytes) != whole
        writer.write(trajectory(3))
    assert [record.id for record in read(path)] == ["0", "1", *(["2"] if whole else []), "3"]


def test_a_batch_is_flushed_to_the_disk_before_its_records_count_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flushed: list[tuple[int, int]] = []
    with Writer(tmp_path / "a.jsonl") as writer:
        monkeypatch.setattr(os, "fsync", lambda file: flushed.append((os.fstat(file).st_size, writer.written)))
        writer.write(trajectory(0))
        writer.flush()
        assert flushed == [((tmp_path / "a.jsonl").stat().st_size, 0)] and writer.written == 1


def test_two_writers_never_share_a_file(tmp_path: Path):
    with Writer(tmp_path / "a.jsonl"), pytest.raises(InputError, match="another process is writing it"):
        Writer(tmp_path / "a.jsonl")


def test_a_program_that_is_being_started_does_not_keep_a_closed_file_locked(tmp_path: Path):
    writer = Writer(tmp_path / "a.jsonl")
    in_child = os.dup(writer._file)  # as between fork and exec
    writer.close()
    Writer(tmp_path / "a.jsonl").close()
    os.close(in_child)


def test_a_full_disk_keeps_what_was_written_and_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.jsonl"
    writer = Writer(path)
    writer.write(trajectory(1))
    writer.flush()
    writer.write(trajectory(2))
    real_write = os.write

    def half_then_full(file: int, data: bytes) -> int:
        if len(data) > 50:
            return real_write(file, data[:50])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", half_then_full)
        with pytest.raises(BoughError, match=r"No space left on device.*1 record is safe"):
            writer.flush()
    assert [record.id for record in read(path)] == ["1"]
    writer.close()
    assert [record.id for record in read(path)] == ["1", "2"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_killed_writer_loses_no_line_that_was_reported_written(tmp_path: Path, ending: str):
    path, rng, reported = tmp_path / f"a{ending}", random.Random(7), 0
    for _ in range(6):
        before = sum(1 for _ in read(path)) if path.exists() else 0
        child = Warm("tests.data.killed_writer", str(path), str(before), str(rng.choice([1, 3, 16])))
        child.stdout.readline()
        time.sleep(rng.uniform(0, 0.05))
        child.kill()
        lines = child.communicate().splitlines()
        assert child.wait() == -signal.SIGKILL
        reported = int(lines[-1]) if lines else before
        kept = [record.id for record in read(path)]
        assert len(kept) >= reported
        assert kept == [str(number) for number in range(len(kept))]
    assert reported > 0


def test_a_bad_name_or_a_file_that_exists_is_refused_before_any_work(tmp_path: Path):
    with pytest.raises(InputError, match="must end in"):
        check_output(tmp_path / "pairs.json", overwrite=True)
    (tmp_path / "pairs.jsonl").touch()
    with pytest.raises(InputError, match="exists"):
        check_output(tmp_path / "pairs.jsonl", overwrite=False)
    check_output(tmp_path / "pairs.jsonl", overwrite=True)


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="taken: this is a file; give a folder"):
        Writer(tmp_path / "taken" / "trajectories.jsonl")
