"""Processes below a process, and the memory they hold, as /proc tells it."""

from __future__ import annotations

import re
from pathlib import Path

MEMORY = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, nearest first. Orphans stay below the first process of their namespace."""
    found, waiting = [], [pid]
    while waiting:
        children = _children(waiting.pop(0))
        found += children
        waiting += children
    return found


def memory_mb(pids: list[int]) -> float:
    """What the processes hold in memory that is backed by no file."""
    kilobytes = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has just ended
            continue
        kilobytes += sum(map(int, MEMORY.findall(status)))
    return kilobytes / 1024


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    except OSError:
        pass
    return children
