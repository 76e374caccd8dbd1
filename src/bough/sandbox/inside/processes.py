"""The descendants of a process and the memory they use, read from /proc."""

from __future__ import annotations

import re
from pathlib import Path

MEMORY = re.compile(r"^(?:RssAnon|RssShmem|VmSwap|VmPTE):\s+(\d+) kB", re.MULTILINE)
SOCKETS = re.compile(r"^sockets: used (\d+)", re.MULTILINE)


def descendants(pid: int) -> list[int]:
    """All descendants of `pid`, nearest first. Orphans become children of the first process of their namespace."""
    found, waiting = [], [pid]
    while waiting:
        children = _children(waiting.pop(0))
        found += children
        waiting += children
    return found


def memory_mb(pids: list[int]) -> float:
    """The memory of the processes that no file backs, in megabytes."""
    kilobytes = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has just ended
            continue
        kilobytes += sum(map(int, MEMORY.findall(status)))
    return kilobytes / 1024


def sockets_mb(pid: int) -> float:
    """The most that the socket buffers in a process's network namespace can hold, in megabytes."""
    try:
        found = SOCKETS.search(Path(f"/proc/{pid}/net/sockstat").read_text())
        most = int(Path("/proc/sys/net/core/wmem_default").read_text())
    except OSError:  # it has just ended
        return 0.0
    return int(found[1]) * 2 * most / 2**20 if found else 0.0


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    except OSError:
        pass
    return children
