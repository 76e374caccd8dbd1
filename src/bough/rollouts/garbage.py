"""Python's garbage collector while episodes are played, and between the stages of a run.

Its full collections walk through every object of the process, and loading torch and
transformers leaves hundreds of thousands that stay until the end. They took a quarter of the
host's time per turn. The rest, a tenth, went into collections after every 700 new objects: a
turn makes hundreds, and almost none of them is garbage in a cycle.
"""

from __future__ import annotations

import gc
import sys
from functools import cache

# New objects between two collections. A cycle may hold the tokens of a few hundred turns until the next one.
THRESHOLD = 20_000


@cache
def spare_what_is_loaded() -> None:
    """Takes the objects that exist now out of all later collections and makes these rarer, once per process."""
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *older)


def free_gpu_memory() -> None:
    """Frees what finished work has left on the GPU, for the next work of this process and for other processes.

    Models refer to themselves, so only the collector frees them, and it leaves alone what it was told to spare.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    spared = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    torch.cuda.empty_cache()
    if spared:
        gc.freeze()
