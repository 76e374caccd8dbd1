"""Folders for weights on their way to a sampler."""

from __future__ import annotations

from pathlib import Path

from bough.online.vllm import PREFIX, HandoverFolder


def test_a_folder_is_deleted_at_the_end(tmp_path: Path):
    folder = HandoverFolder(tmp_path / "memory", private=True)
    (folder.new("step-0") / "deep").mkdir(parents=True)
    assert folder.path.stat().st_mode & 0o777 == 0o700, "weights in memory are for this user only"
    folder.close()
    folder.close()
    assert list((tmp_path / "memory").iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_and_what_is_in_use_stays(tmp_path: Path):
    in_use = HandoverFolder(tmp_path, private=True)
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / ".lock").touch()
    (tmp_path / "other").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / ".lock").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    another = HandoverFolder(tmp_path, private=False)
    assert in_use.path.exists() and another.path.exists() and not left.exists()
    assert (tmp_path / "other").exists() and (target / ".lock").exists(), "a link is not followed"
    assert in_use.path != another.path


def test_names_never_come_twice(tmp_path: Path):
    folder = HandoverFolder(tmp_path, private=True)
    assert folder.new("step-1") != folder.new("step-1")
