"""System calls that Python 3.11 does not provide, and what /proc says of processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from pathlib import Path
from typing import Any

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
# Numbers differ between architectures; from 424 on they are the same everywhere.
NUMBERS = {"x86_64": {"pivot_root": 155, "capset": 126}, "aarch64": {"pivot_root": 41, "capset": 91}}
MOUNT_SETATTR = 442
NOBODY = 65534
MEMORY = re.compile(r"^(?:RssAnon|RssShmem|VmSwap|VmPTE):\s+(\d+) kB", re.MULTILINE)
SOCKETS = re.compile(r"^sockets: used (\d+)", re.MULTILINE)

libc = ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: Any) -> int:
    """Calls a function of the C library; raises OSError if it returns -1."""
    result: int = getattr(libc, function)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
    return result


def number(name: str) -> int:
    """The number of a system call on this architecture."""
    try:
        return NUMBERS[platform.machine()][name]
    except KeyError:
        raise OSError(0, f"no table of system calls for {platform.machine()}") from None


def unshare(flags: int) -> None:
    call("unshare", flags)


def prctl(option: int, *values: Any) -> None:
    call("prctl", option, *[ctypes.c_ulong(value) if isinstance(value, int) else value for value in values])


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    call("mount", text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data))


def read_only(path: str, *, recursive: bool = True) -> None:
    """Makes a mount, and those below it, read-only and without set-uid programs and devices."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    try:
        call(
            "syscall", MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), flags, ctypes.byref(attributes), ctypes.c_size_t(32)
        )
    except OSError:  # Linux before 5.12: mounts below keep their own flags
        mount("none", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)


def pivot_root(root: str) -> None:
    """Makes `root` the root directory and unmounts the old one."""
    os.chdir(root)
    call("syscall", number("pivot_root"), b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def become_nobody() -> None:
    """Drops root and enters a new user namespace, in which the number of processes is counted separately."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    with contextlib.suppress(OSError):  # then they count together with other processes of the user nobody
        unshare(CLONE_NEWUSER)


def drop_capabilities() -> None:
    """Drops all privileges permanently."""
    header = (ctypes.c_uint32 * 2)(0x2008_0522, 0)  # version 3, this process
    nothing = (ctypes.c_uint32 * 6)()
    call("syscall", number("capset"), ctypes.byref(header), ctypes.byref(nothing))


def descendants(pid: int) -> list[int]:
    """All descendants of `pid`, nearest first. Orphans become children of the first process of their namespace."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found[1:]


def memory_mb(pids: list[int]) -> float:
    """The memory of the processes that no file backs, in megabytes."""
    kilobytes = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            kilobytes += sum(map(int, MEMORY.findall(Path(f"/proc/{pid}/status").read_text())))
    return kilobytes / 1024


def sockets_mb(pid: int) -> float:
    """The most that the socket buffers in a process's network namespace can hold, in megabytes."""
    try:
        found = SOCKETS.search(Path(f"/proc/{pid}/net/sockstat").read_text())
        most = int(Path("/proc/sys/net/core/wmem_default").read_text())
    except OSError:  # it has just ended
        return 0.0
    return int(found[1]) * 2 * most / 2**20 if found else 0.0
