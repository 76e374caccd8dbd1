from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bough.config.base import leaves
from bough.methods.distill import DistillConfig
from bough.methods.grpo import GRPOConfig
from bough.online.files import FREE, BatchFile, EpisodeFiles, Stamp, Stamper, remove_drafts, settings_digest
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


def config(**more: Any) -> GRPOConfig:
    return GRPOConfig(**{"environment": "a", "max_steps": 3, "model": "tiny", **more})


def test_a_stamp_changes_with_trained_and_with_frozen_weights():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    # Half of the bits rise by what the other half falls when something is added: their sum does not tell.
    nn.init.constant_(model[1].weight, 1.5)
    model[1].weight.data[0] *= -1
    model[0].requires_grad_(False)
    first = Stamper(config(), model).stamp()
    stamper = Stamper(config(), model)
    assert stamper.stamp() == first and stamper.stamp().number == first.number
    with torch.no_grad():
        model[1].weight.add_(1e-6)
    trained = stamper.stamp()
    assert trained.settings == first.settings and trained.weights != first.weights
    assert trained.number != first.number
    with torch.no_grad():
        model[0].weight.add_(1e-6)
    assert Stamper(config(), model).stamp().weights not in (first.weights, trained.weights)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.7}, {"group_size": 4}, {"max_new_tokens": 9}, {"options": {"level": "2"}}, {"seed": 1},
        {"rewards": {"outcome": 1}}, {"advantage": "turn"}, {"max_length": 128}, {"eval_every": 1}, {"model": "other"},
        {"max_staleness": 1},
    ],
)  # fmt: skip
def test_settings_that_matter_for_a_batch_change_its_stamp(change: dict[str, Any]):
    assert settings_digest(config(**change)) != settings_digest(config())


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 1.0}, {"max_steps": 9}, {"output_dir": "b"}, {"resume": True}, {"watch": False},
        {"token_budget": 512}, {"clip_low": 0.1}, {"concurrency": 2}, {"updates": 3}, {"save_steps": 7},
    ],
)  # fmt: skip
def test_settings_that_decide_only_what_is_learnt_do_not(change: dict[str, Any]):
    assert settings_digest(config(**change)) == settings_digest(config())


def test_free_settings_are_settings():
    assert (leaves(GRPOConfig) | leaves(DistillConfig)).keys() >= FREE


def test_of_a_file_what_is_in_it_counts(tmp_path: Path):
    one, same, other = (tmp_path / name for name in ("one.jsonl", "same.jsonl", "other.jsonl"))
    for path, text in ((one, "a"), (same, "a"), (other, "b")):
        path.write_text(text)
    first, second, third = (settings_digest(config(task_file=path)) for path in (one, same, other))
    assert first == second != third
