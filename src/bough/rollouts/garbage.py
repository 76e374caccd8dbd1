"""Python's garbage collector while episodes are played.

Its full collections walk through every object of the process, and loading torch and
transformers leaves hundreds of thousands that stay until the end. They took a quarter of the
host's time per turn. The rest, a tenth, went into collections after every 700 new objects: a
turn makes hundreds, and almost none of them is garbage in a cycle.
"""

from __future__ import annotations

import gc
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
