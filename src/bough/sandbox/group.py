"""A control group (version 2) for each sandbox, where this user may create one.

The kernel then also counts what no list of processes shows, such as its own memory for
files and locks. The group's limit is above the limit that `worker.py` enforces, which
ends a program with a reason; a program that reaches the group's limit is killed without one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from functools import cache
from itertools import count
from pathlib import Path

from bough.sandbox.base import SandboxLimits

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NEEDED = {"memory", "pids"}
BOUNDS = ("memory.max", "memory.high", "memory.swap.max", "pids.max", "cpu.max", "cpuset.cpus")
# The launcher, the keeper and threads that a warm-up may have started.
OWN_PROCESSES = 8
# Killed processes leave their group only after the kernel has taken their namespaces apart.
REMOVE_S = 3.0
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
_NUMBERS = count()


class ControlGroup:
    """One group, empty until a command is started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, start: list[str]) -> list[str]:
        """The command that runs `start`, and every process it creates, in the group."""
        return ["/bin/sh", "-c", ENTER, str(self.folder), *start]

    def remove(self) -> None:
        """Kills the processes that are left in the group and removes it."""
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + REMOVE_S
        while self.folder.exists() and time.monotonic() < deadline:
            try:
                self.folder.rmdir()
            except OSError:  # a process is still in it
                time.sleep(0.01)


def make(limits: SandboxLimits, own_mb: float) -> ControlGroup | None:
    """A group for one sandbox, whose keeper uses `own_mb` itself; None where groups are not available."""
    above = place(os.geteuid())
    return None if above is None else _make(above, limits, own_mb)


@cache
def place(user: int) -> Path | None:  # noqa: ARG001  another user, another answer
    """The group to make others in, after a trial that a command can enter one."""
    above = find()
    if above is None:
        return None
    for left in above.glob("bough-*-*"):  # by a process that was killed
        if not Path("/proc", left.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                left.rmdir()
    group = _make(above, SandboxLimits(), 0.0)
    if group is None:
        return None
    try:
        tried = subprocess.run(group.command(["/bin/true"]), capture_output=True, timeout=10)  # noqa: S603  ours
        return above if tried.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        return None
    finally:
        group.remove()


def find() -> Path | None:
    """The nearest group, this process's own or one above it, that delegates the controllers needed.

    The search never goes above a group that has limits: sandboxes must not escape them.
    """
    try:
        (own,) = [line[3:] for line in OWN.read_text().splitlines() if line.startswith("0::")]
        here = ROOT / own.strip("/")
        while True:
            controllers = (here / "cgroup.subtree_control").read_text().split() if here.is_dir() else ()
            writable = os.access(here, os.W_OK) and os.access(here / "cgroup.procs", os.W_OK)
            if writable and NEEDED.issubset(controllers):
                return here
            limits = [(here / name).read_text().split() for name in BOUNDS if (here / name).exists()]
            if here == ROOT or any(limit and limit[0] != "max" for limit in limits):
                return None
            here = here.parent
    except (OSError, ValueError):
        return None


def _make(above: Path, limits: SandboxLimits, own_mb: float) -> ControlGroup | None:
    group = ControlGroup(above / f"bough-{os.getpid()}-{next(_NUMBERS)}")
    # Both scratch folders are memory too. The watch checks twenty times a second and should act first.
    memory_mb = int(1.25 * limits.memory_mb + 2 * limits.disk_mb + own_mb) + 64
    try:
        group.folder.mkdir()
        (group.folder / "memory.max").write_text(str(memory_mb << 20))
        (group.folder / "pids.max").write_text(str(limits.processes + OWN_PROCESSES))
        if (group.folder / "memory.swap.max").exists():
            (group.folder / "memory.swap.max").write_text("0")
    except OSError:
        group.remove()
        return None
    return group
