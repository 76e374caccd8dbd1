"""How many tokens' keys and values may be kept, read off the machine."""

from __future__ import annotations

from pathlib import Path

import torch

from bough.policy.gpu_memory import unused_bytes

SHARE = 0.5  # of what is free on a computer: others live there too
GPU_SHARE = 0.85  # of what is free on a GPU: passes need some themselves
LEAST = 0.3  # of what is free on a GPU, whatever training asks for: it can make smaller passes, an episode cannot


def free_bytes(device: torch.device, training: int = 0) -> int:
    """What is free for caches now; on a GPU beside the bytes that training will take in the same process."""
    if device.type == "cuda":
        unused = unused_bytes(device)
        return int(max(unused - training, unused * LEAST) * GPU_SHARE)
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
