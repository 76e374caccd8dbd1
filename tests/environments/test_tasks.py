import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from bough.config.base import Config
from bough.environments.base import EnvironmentFailedError, configured, first_tasks, read_tasks, tasks_of
from bough.errors import InputError
from bough.types import Task
from bough.worlds.interpreter.environment import Interpreter
from tests.environments.worlds import Counting


class Choosy(Counting):
    class Options(Config):
        words: list[str] = Field([], description="some")
        size: int = Field(1, description="how large")

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Any:
        yield Task(id="only", seed=seed, data={"words": options.words, "size": options.size, "split": split})


def test_tasks_name_their_environment_and_options_reach_them():
    [task] = islice(tasks_of(Counting, options={}, split="unseen", seed=7), 1)
    assert task == Task(id="unseen-7-0", environment="counting", data={"goal": 2, "number": 0})
    [task] = tasks_of(Choosy, options={"words": "a, b,c", "size": 3}, seed=5)
    assert task.data == {"words": ["a", "b", "c"], "size": 3, "split": "train"} and task.seed == 5
    with pytest.raises(InputError, match="sice is not a setting; did you mean size"):
        next(tasks_of(Choosy, options={"sice": 3}))
    with pytest.raises(InputError, match=r"--options of interpreter has 1 problem:\n.* is not a setting"):
        next(tasks_of(Interpreter, options={"no_such_option": 1}))


def test_tasks_of_a_file_are_tasks_or_any_object(tmp_path: Path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "seed": 4, "data": {"goal": 3}}\n\n{"goal": 5}\n{"id": "mine", "goal": 2}\n')
    first, second, third = tasks_of(Counting, options={}, task_file=file)
    assert first == Task(id="a", environment="counting", seed=4, data={"goal": 3})
    assert second.data == {"goal": 5} and len(second.id) == 12
    assert third.id == "mine" and third.data == {"id": "mine", "goal": 2}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"goal": 1}\n[1]\n', ":2: the line is JSON but not an object"),
        ('{"id": "a", "data": {}, "seeed": 1}\n', ':1: "seeed": Extra inputs are not permitted'),
        ("{\n", ":1: "),
    ],
)
def test_a_bad_task_is_named_by_its_place(tmp_path: Path, text: str, complaint: str):
    file = tmp_path / "tasks.jsonl"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        list(tasks_of(Counting, options={}, task_file=file))
    assert complaint in str(error.value)


class Timed(Counting):
    class Settings(Config):
        limit_s: float = 1.0

    class Options(Settings):
        size: int = 1

    settings = Settings()


def test_settings_are_the_environments_and_no_tasks(tmp_path: Path):
    assert configured(Timed, {}) is Timed and configured(Timed, {"size": 2}) is Timed
    slow = configured(Timed, {"limit_s": 5, "size": 2})
    assert slow.settings.limit_s == 5 and Timed.settings.limit_s == 1 and slow.name == Timed.name
    assert issubclass(slow, Timed) and slow.__name__ == "Timed"
    with pytest.raises(InputError, match="limit_s"):
        configured(Timed, {"limit_s": "x"})
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "data": {"goal": 3, "limit_s": 100}}')
    (task,) = tasks_of(slow, options={"limit_s": 5}, task_file=file)
    assert slow(task).settings.limit_s == 5
    with pytest.raises(InputError, match="--options size cannot be combined with --task-file"):
        next(tasks_of(slow, options={"limit_s": 5, "size": 2}, task_file=file))


def test_as_many_tasks_as_there_are():
    assert [task.id for task in first_tasks(tasks_of(Counting, options={}), 2)] == ["train-0-0", "train-0-1"]
    assert len(first_tasks(tasks_of(Choosy, options={}), 5)) == 1
    with pytest.raises(InputError, match="no task matches"):
        first_tasks(iter(()), 5)


def test_a_repeated_task_is_skipped_and_a_different_one_of_the_same_id_gets_a_number(caplog: pytest.LogCaptureFixture):
    class Repeating(Counting):
        @classmethod
        def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
            for goal in (2, 2, 3, 2, 4, 3):
                yield Task(id="a", data={"goal": goal})
            while True:
                yield Task(id="b", data={"goal": 2})

    tasks = first_tasks(tasks_of(Repeating, options={}), 9)
    assert [(task.id, task.data["goal"]) for task in tasks] == [("a", 2), ("a-2", 3), ("a-3", 4), ("b", 2)]
    assert caplog.text.count("tasks repeat an earlier one and are skipped") == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_embedded_arithmetic_does_not_end_where_a_problem_comes_twice(seed: int):
    tasks = first_tasks(tasks_of(Interpreter, options={}, seed=seed), 1000)
    assert len({task.id for task in tasks}) == 1000


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("x", "tasks yielded a value of type str; it must yield bough.Task objects"),
        (Task(id="\ud800"), "tasks raised PydanticSerializationError"),
        (ValueError("no file"), r"tasks raised ValueError: no file \(.*test_tasks.py:\d+\)"),
    ],
)
def test_tasks_that_cannot_be_made_are_the_environments_fault(given: Any, complaint: str):
    class Wrong(Counting):
        @classmethod
        def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
            if isinstance(given, Exception):
                raise given
            yield given

    with pytest.raises(EnvironmentFailedError, match=complaint):
        next(tasks_of(Wrong, options={}))


def test_a_file_that_is_cut_is_an_input_error_after_its_good_rows(tmp_path: Path):
    whole = gzip.compress(b"".join(b'{"goal": %d}\n' % number for number in range(50_000)))
    (tmp_path / "tasks.jsonl.gz").write_bytes(whole[:-20])
    tasks = read_tasks(tmp_path / "tasks.jsonl.gz", "counting")
    assert next(tasks).data == {"goal": 0}
    with pytest.raises(InputError, match=r"tasks\.jsonl\.gz: the file cannot be read after line \d+"):
        list(tasks)


def test_all_bad_rows_are_named_together(tmp_path: Path):
    (tmp_path / "tasks.jsonl").write_text('{"goal": 1}\nx\n{"goal": 2}\n{"id": "a", "data": {}, "seed": "x"}\n')
    with pytest.raises(InputError, match=r"has 2 problems:\n.*tasks\.jsonl:2: .*\n.*tasks\.jsonl:4: \"seed\""):
        list(read_tasks(tmp_path / "tasks.jsonl", "counting"))


def test_a_folder_is_read_shard_by_shard(tmp_path: Path):
    for name, goal in (("b", 2), ("a", 1)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"goal": {goal}}}\n')
    assert [task.data["goal"] for task in read_tasks(tmp_path, "counting")] == [1, 2]
