"""Memory of the host that is freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys

# glibc's number for the size from which a block is mapped by itself, and unmapped as soon as it is freed.
M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 1 << 20


def return_freed_memory() -> bool:
    """From now on freed tensors take no memory; False where the C library is not glibc.

    By itself glibc comes to keep freed blocks of up to 32 MiB for later. With gradient checkpointing on a CPU the
    inputs of layers, which stay, lie between the activations, which do not: the gaps fit nothing that comes later.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES))
