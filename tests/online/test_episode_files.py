from pathlib import Path

import pytest

from bough.online.files import EpisodeFiles
from bough.types import Message, Task, Trajectory


def episode(id: str) -> Trajectory:
    return Trajectory(id=id, task=Task(id="t"), start=[Message(role="user")], turns=[], info={"agent": "a"})


def files(folder: Path, settings: str = "settings", **weights: str) -> EpisodeFiles:
    found = EpisodeFiles(folder, settings)
    found.weights = {int(name[1:]): digest for name, digest in (weights or {"v0": "a", "v1": "b"}).items()}
    return found


def test_finished_episodes_are_read_back_as_they_were(tmp_path: Path):
    written = files(tmp_path)
    assert written.read(3) == {}
    written.add(3, episode("t#0"), range(1))
    written.add(3, episode("t#1"), range(2))
    assert files(tmp_path).read(3) == {"t#0": episode("t#0"), "t#1": episode("t#1")}
    assert files(tmp_path).read(4) == {}


@pytest.mark.parametrize(
    "other",
    [
        {"settings": "others"},
        {"v0": "a"},  # version 1 is not known yet
        {"v0": "a", "v1": "c"},
        {"v0": "c", "v1": "b"},
    ],
)
def test_episodes_of_other_settings_or_weights_are_played_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: dict[str, str]
):
    files(tmp_path).add(3, episode("t#0"), range(2))
    assert files(tmp_path, **other).read(3) == {}
    assert "000003.jsonl was sampled with different settings or weights" in caplog.text
    assert list(tmp_path.iterdir()) == [], "later episodes do not stand beside them"


def test_the_torn_line_of_a_kill_is_not_an_episode(tmp_path: Path):
    written = files(tmp_path)
    written.add(3, episode("t#0"), range(1))
    with (tmp_path / "000003.jsonl").open("a") as file:
        file.write('{"id": "t#1", "ta')
    assert list(files(tmp_path).read(3)) == ["t#0"]
    written.add(3, episode("t#2"), range(1))
    assert list(files(tmp_path).read(3)) == ["t#0", "t#2"]


def test_what_batches_have_used_is_removed(tmp_path: Path):
    written = files(tmp_path)
    for number in range(6):
        written.add(number, episode("t#0"), range(1))
    written.keep_only([1, 3], next_number=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.jsonl", "000003.jsonl", "000005.jsonl"]


def test_episodes_of_versions_before_the_wanted_one_are_played_again(tmp_path: Path):
    files(tmp_path).add(3, episode("t#0"), range(1, 2))
    assert files(tmp_path).read(3, since=1) == {"t#0": episode("t#0")}
    assert files(tmp_path).read(3, since=2) == {} and list(tmp_path.iterdir()) == []


def test_the_attempts_at_a_task_can_be_removed(tmp_path: Path):
    written = files(tmp_path)
    written.add(3, episode("t#0"), range(1))
    written.remove(3)
    written.remove(4)
    assert written.read(3) == {}
