import gzip
from pathlib import Path

import pytest

from bough.environments.tasks import read_tasks
from bough.errors import InputError


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"nope\.jsonl: there is no such file"):
        next(read_tasks(tmp_path / "nope.jsonl", "counting"))


def test_a_file_that_is_cut_is_an_input_error_after_its_good_rows(tmp_path: Path):
    whole = gzip.compress(b"".join(b'{"goal": %d}\n' % number for number in range(50_000)))
    (tmp_path / "tasks.jsonl.gz").write_bytes(whole[:-20])
    tasks = read_tasks(tmp_path / "tasks.jsonl.gz", "counting")
    assert next(tasks).data == {"goal": 0}
    with pytest.raises(InputError, match=r"tasks\.jsonl\.gz: the file cannot be read after line \d+"):
        list(tasks)


def test_a_folder_is_read_shard_by_shard(tmp_path: Path):
    for name, goal in (("b", 2), ("a", 1)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"goal": {goal}}}\n')
    assert [task.data["goal"] for task in read_tasks(tmp_path, "counting")] == [1, 2]


def test_a_repeated_row_is_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "goal": 2}\n{"goal": 3}\n{"id": "a", "goal": 2}\n{"goal": 3}\n{"goal": 4}\n')
    assert [task.data["goal"] for task in read_tasks(file, "counting")] == [2, 3, 4]
    assert "tasks.jsonl: 2 rows repeat an earlier one and are skipped, line 3 first" in caplog.text


def test_two_tasks_with_the_same_id_are_named_by_their_lines(tmp_path: Path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "goal": 2}\n\n{"id": "a", "goal": 3}\n')
    with pytest.raises(InputError, match=r"tasks\.jsonl:3: the id 'a' is also the id of another task, in line 1"):
        list(read_tasks(file, "counting"))
