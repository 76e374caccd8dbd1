import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
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
    (tmp_path / "own").write_text("4:memory:/x\n")  # version 1
    assert group.find() is None


@pytest.mark.parametrize(("name", "value"), [("memory.max", "1000000\n"), ("pids.max", "50"), ("cpu.max", "5 100")])
def test_a_group_with_limits_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    above = tree(tmp_path, monkeypatch)
    (above / "session" / name).write_text(value)
    assert group.find() is None


def test_a_group_has_its_limits_before_anything_starts_in_it(tmp_path: Path):
    made = group._make(tmp_path, SandboxLimits(memory_mb=400, disk_mb=8, processes=16), own_mb=64)
    assert made is not None
    assert (made.folder / "memory.max").read_text() == str((500 + 16 + 64 + 64) << 20)
    assert (made.folder / "pids.max").read_text() == "24"
    done = subprocess.run(made.command(["/bin/echo", "a  b"]), capture_output=True, text=True, check=True)
    assert done.stdout == "a  b\n" and (made.folder / "cgroup.procs").read_text().strip().isdigit()


def test_a_sandbox_is_in_its_group_and_the_group_goes_with_it():
    above = group.place(os.geteuid())
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


def test_a_group_is_removed_however_slowly_its_processes_end(tmp_path: Path):
    made = group.ControlGroup(tmp_path / "group")
    made.folder.mkdir()
    # A plain folder cannot be removed while it has a file, here the one that `remove` writes into.
    emptied = threading.Timer(0.7, (made.folder / "cgroup.kill").unlink)
    emptied.start()
    made.remove()
    assert not made.folder.exists()
    emptied.join()


@pytest.fixture
def real() -> Iterator[group.ControlGroup]:
    """A group of this machine's kernel, for at most 12 processes and 146 MB."""
    above = group.place(os.geteuid())
    if above is None:
        pytest.skip("no control group (version 2) can be made here")
    made = group._make(above, SandboxLimits(memory_mb=64, disk_mb=1, processes=4), own_mb=0)
    assert made is not None
    yield made
    made.remove()
    assert not made.folder.exists()


def test_a_real_group_ends_what_holds_too_much(real: group.ControlGroup):
    small, large = (f"len(bytearray({megabytes} << 20))" for megabytes in (16, 400))
    assert subprocess.run(real.command([sys.executable, "-c", small])).returncode == 0
    assert subprocess.run(real.command([sys.executable, "-c", large])).returncode == -signal.SIGKILL
    assert "oom_kill 1" in (real.folder / "memory.events").read_text().splitlines()


def test_a_real_group_refuses_more_processes(real: group.ControlGroup):
    code = (
        "import os, time\nmade = 0\ntry:\n    while made < 50:\n        os.fork() or (os.close(1), time.sleep(600))\n"
        "        made += 1\nexcept BlockingIOError:\n    print(made)\n"
    )
    done = subprocess.run(real.command([sys.executable, "-c", code]), stdout=subprocess.PIPE, text=True)
    assert done.stdout == "11\n"


def test_a_real_group_that_is_removed_takes_its_processes_along(real: group.ControlGroup):
    command = real.command(["/bin/sh", "-c", "sleep 600 & echo started; exec sleep 600"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        assert len((real.folder / "cgroup.procs").read_text().split()) == 2
        real.remove()
        assert process.wait() == -signal.SIGKILL and not real.folder.exists()
