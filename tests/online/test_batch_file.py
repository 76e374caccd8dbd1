from pathlib import Path

import pytest
import torch

from bough.online.files import BatchFile, Stamp, remove_drafts
from bough.types import Group, Message, Task, Trajectory

STAMP, OTHER = Stamp("settings", "weights"), Stamp("settings", "other weights")
TOKENS, LOGPROBS = torch.tensor([4, 5]), torch.tensor([-0.5, -0.25])


def group(name: str) -> Group:
    task = Task(id=name)
    return Group(task=task, attempts=[Trajectory(id=name, task=task, start=[Message(role="user")], turns=[])])


def test_a_batch_is_read_back_as_it_was_written(tmp_path: Path):
    file = BatchFile(tmp_path, 7)
    assert file.stamp is None and file.numbers() == {}
    file.write([group("a"), group("b")], {"reward": 0.5}, STAMP)
    again = BatchFile(tmp_path, 7)
    assert again.stamp == STAMP and again.groups() == [group("a"), group("b")]
    assert again.numbers()["reward"] == 0.5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00007.json", "00007.jsonl"]


def test_a_batch_in_place_of_another_leaves_nothing_of_it(tmp_path: Path):
    file = BatchFile(tmp_path, 7)
    file.write([group("a")], {"reward": 0.5, "old": 1}, STAMP)
    file.keep_logprobs(STAMP, TOKENS, LOGPROBS)
    file.write([group("b")], {"reward": 1.0}, OTHER)
    assert file.stamp == OTHER and file.groups() == [group("b")] and "old" not in file.numbers()
    assert file.logprobs(STAMP, TOKENS) is None


def test_groups_never_stand_beside_the_numbers_of_another_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = BatchFile(tmp_path, 7)
    file.write([group("a")], {}, STAMP)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bough.online.files.Writer", killed)
    with pytest.raises(KeyboardInterrupt):
        file.write([group("b")], {}, OTHER)
    assert file.stamp is None


def test_a_batch_without_a_stamp_matches_none(tmp_path: Path):
    file = BatchFile(tmp_path, 7)
    file.write([group("a")], {}, STAMP)
    (tmp_path / "00007.json").write_text('{"tasks_drawn": 1}')
    assert file.stamp not in (None, STAMP)
    (tmp_path / "00007.json").unlink()
    assert file.stamp not in (None, STAMP)


def test_log_probabilities_are_of_one_stamp_and_these_tokens(tmp_path: Path):
    file = BatchFile(tmp_path, 7)
    assert file.logprobs(STAMP, TOKENS) is None
    file.keep_logprobs(STAMP, TOKENS, LOGPROBS)
    found = file.logprobs(STAMP, TOKENS)
    assert found is not None and torch.equal(found, LOGPROBS)
    assert file.logprobs(OTHER, TOKENS) is None and file.logprobs(STAMP, TOKENS + 1) is None


def test_what_a_killed_process_has_not_finished_is_removed(tmp_path: Path):
    file = BatchFile(tmp_path, 7)
    file.write([group("a")], {}, STAMP)
    for name in (".00008.json.123.json", ".00008.jsonl.123.jsonl", ".notes"):
        (tmp_path / name).write_text("half")
    remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes", "00007.json", "00007.jsonl"]
