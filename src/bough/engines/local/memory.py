"""How many tokens' keys and values may be kept, read off the machine."""

from __future__ import annotations

from pathlib import Path

import torch

SHARE = 0.5  # of what is free on a computer: others live there too
GPU_SHARE = 0.85  # of what is free on a GPU: passes need some themselves


def free_bytes(device: torch.device) -> int:
    """What is free for caches now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # Several processes may share the GPU, each with a part of it.
        index = torch.cuda.current_device() if device.index is None else device.index
        part = total * torch.cuda.get_per_process_memory_fraction(index) - torch.cuda.memory_reserved(index)
        return int(max(min(free, part), 0) * GPU_SHARE)
    return int(min(_available(), _allowed()) * SHARE)


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 8 << 30  # no Linux: a guess that a laptop can bear


def _allowed() -> int:
    """What the container may still take."""
    group = Path("/sys/fs/cgroup")
    try:
        most, used = (int((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return 1 << 62
    return max(most - used, 0)
