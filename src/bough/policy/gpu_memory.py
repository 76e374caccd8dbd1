"""How much of a GPU's memory this process may still take: the only place that asks the GPU."""

from __future__ import annotations

import torch


def unused_bytes(device: torch.device, processes: int = 1) -> int:
    """What is free on a GPU that `processes` of this run share, and within this process's part of it, if it has one."""
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    part = total * torch.cuda.get_per_process_memory_fraction(index) - torch.cuda.memory_reserved(index)
    return int(max(min(free // processes, part), 0))


def unused_fraction(device: torch.device, keep: int = 0) -> float:
    """The same as a fraction of all memory of the GPU, less `keep` bytes."""
    return (unused_bytes(device) - keep) / torch.cuda.mem_get_info(device)[1]
