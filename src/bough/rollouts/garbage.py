"""Python's garbage collector while episodes are played.

Its full collections walk through every object of the process, and loading torch and
transformers leaves hundreds of thousands that stay until the end. They took a quarter of the
host's time per turn.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_what_is_loaded() -> None:
    """Takes the objects that exist now out of all later collections, once per process."""
    gc.collect()
    gc.freeze()
