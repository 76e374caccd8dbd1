import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from bough.sandbox import group
from bough.sandbox.base import SandboxLimits
from bough.sandbox.pool import Sandbox


def tree(root: Path, monkeypatch: pytest.MonkeyPatch, own: str = "user/session") -> Path:
    """Folders as the kernel shows groups: /user hands memory and pids on, this process is in /user/session."""
    (root / "user" / "session").mkdir(parents=True)
    for folder, controllers in ((root, "memory pids"), (root / "user", "cpu memory pids"), (root / "user/session", "")):
        (folder / "cgroup.subtree_control").write_text(controllers + "\n")
        (folder / "cgroup.procs").write_text("")
        if folder != root:
            for name in ("memory.max", "pids.max", "memory.high"):
                (folder / name).write_text("max\n")
            (folder / "cpu.max").write_text("max 100000\n")
    (root / "own").write_text(f"1:cpu:/x\n0::/{own}\n")
    monkeypatch.setattr(group, "ROOT", root)
    monkeypatch.setattr(group, "OWN", root / "own")
    return root / "user"


def test_groups_are_made_in_the_nearest_one_that_hands_on_memory_and_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    above = tree(tmp_path, monkeypatch)
    assert group.find() == above
    (above / "cgroup.subtree_control").write_text("cpu\n")
    assert group.find() == tmp_path


@pytest.mark.parametrize(("name", "value"), [("memory.max", "1000000\n"), ("pids.max", "50"), ("cpu.max", "5 100")])
def test_a_group_with_limits_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    above = tree(tmp_path, monkeypatch)
    (above / "session" / name).write_text(value)
    assert group.find() is None


def test_without_version_2_there_is_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tree(tmp_path, monkeypatch)
    (tmp_path / "own").write_text("4:memory:/x\n")
    assert group.find() is None
    monkeypatch.setattr(group, "ROOT", tmp_path / "nothing")
    assert group.find() is None


def test_a_group_has_its_limits_before_anything_starts_in_it(tmp_path: Path):
    made = group._make(tmp_path, SandboxLimits(memory_mb=400, disk_mb=8, processes=16), own_mb=64)
    assert made is not None
    assert (made.folder / "memory.max").read_text() == str((500 + 16 + 64 + 64) << 20)
    assert (made.folder / "pids.max").read_text() == "24"
    done = subprocess.run(made.command(["/bin/echo", "a  b"]), capture_output=True, text=True, check=True)
    assert done.stdout == "a  b\n" and (made.folder / "cgroup.procs").read_text().strip().isdigit()


def test_where_a_group_cannot_be_entered_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group, "find", lambda: tmp_path)
    monkeypatch.setattr(group, "ENTER", "exit 1")
    assert group._place.__wrapped__(os.geteuid()) is None
    monkeypatch.setattr(group, "find", lambda: tmp_path / "nothing")
    assert group._place.__wrapped__(os.geteuid()) is None


def test_a_sandbox_is_in_its_group_and_the_group_goes_with_it():
    above = group._place(os.geteuid())
    if above is None:
        pytest.skip("no control group (version 2) can be made here")

    async def play() -> None:
        async with Sandbox(SandboxLimits(), workers=1) as sandbox:
            await sandbox.run("1")
            (worker,) = sandbox._idle
            (folder,) = above.glob(f"bough-{os.getpid()}-*")
            assert str(worker.pid) in (folder / "cgroup.procs").read_text().split()

    asyncio.run(play())
    assert not list(above.glob(f"bough-{os.getpid()}-*"))
