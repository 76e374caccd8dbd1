"""How much of a GPU's memory this process may still take."""

from __future__ import annotations

import torch


def unused_bytes(device: torch.device, processes: int = 1) -> int:
    """What is free on a GPU that `processes` of this run share, and within this process's part of it, if it has one."""
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    part = total * torch.cuda.get_per_process_memory_fraction(index) - torch.cuda.memory_reserved(index)
    return int(max(min(free // processes, part), 0))
