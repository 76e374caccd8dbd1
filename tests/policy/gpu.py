"""A GPU of 80 GiB, as far as questions about its memory go."""

import pytest
import torch

GIB = 2**30


def pretend(monkeypatch: pytest.MonkeyPatch, *, free: float, part: float = 1.0, reserved: float = 0) -> None:
    """It has `free` GiB; this process may have a `part` of all and has `reserved` GiB of them already."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _=None: (int(free * GIB), 80 * GIB))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: part)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: int(reserved * GIB))
