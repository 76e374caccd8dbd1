"""Isolates itself with the kernel's namespaces, then becomes the keeper.

Root mounts everything and then drops its privileges permanently; an ordinary user enters a
user namespace first. In both cases the keeper has no privileges, a root directory of
read-only views, no network, and cannot see other processes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

from bough.sandbox.inside import kernel

# Without /dev/zero: shared mappings of it are memory that no process is charged for.
DEVICES = ("null", "full", "random", "urandom")
INODES = 16_384  # files in each scratch folder: even an empty one takes kernel memory
ROOM = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
)  # fmt: skip


def main(plan: dict[str, Any]) -> NoReturn:
    """Carries out `plan`, which `bough.sandbox.isolation` describes."""
    root = os.geteuid() == 0
    os.umask(0o022)  # the keeper, as another user, must be able to enter the parent folders of a view
    if not root:
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    kernel.unshare(ROOM)
    _build(plan)
    kernel.pivot_root(plan["root"])
    pid = os.fork()
    if pid == 0:
        if root:
            kernel.become_nobody()
        os.execve(plan["command"][0], plan["command"], plan["environment"])  # noqa: S606
    os.close(0)  # so that the host sees the end of the keeper
    os.waitpid(pid, 0)
    os._exit(0)


def _build(plan: dict[str, Any]) -> None:
    root = plan["root"]
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    _tmpfs(root, "size=1m,mode=755")
    for link, target in plan["links"].items():
        Path(root + link).parent.mkdir(parents=True, exist_ok=True)
        Path(root + link).symlink_to(target)
    for source, place in plan["views"].items():
        _view(source, root + place)
    for folder in plan["covered"]:
        _tmpfs(root + folder, "size=4k,mode=555")
        kernel.read_only(root + folder)
    for device in DEVICES:
        _view(f"/dev/{device}", f"{root}/dev/{device}")
    for folder in plan["scratch"]:
        Path(root + folder).mkdir(parents=True, exist_ok=True)
        _tmpfs(root + folder, f"size={plan['disk_mb']}m,nr_inodes={INODES},mode=1777")
    kernel.read_only(root, recursive=False)


def _tmpfs(place: str, options: str) -> None:
    kernel.mount("tmpfs", place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def _view(source: str, place: str) -> None:
    if Path(source).is_dir():
        Path(place).mkdir(parents=True, exist_ok=True)
    else:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).touch()
    kernel.mount(source, place, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.read_only(place)
