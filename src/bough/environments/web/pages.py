"""What is known of the pages by name: which a text can solve, when enough is enough, which to load anew.

Each list was found by trying (`benchmarks/web_pages.py`, `web_expert.py`, `web_restart.py`);
a page that a later miniwob adds can be played all the same, it is only not in the default.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from bough.errors import InputError

# What would have to be seen, or done faster or rounder than single actions allow.
NOT_FOR_TEXT = {
    "chase-circle": "the mouse would have to follow a circle all the time, not once a turn",
    "count-sides": "the shape is drawn on a canvas",
    "drag-cube": "which side of the cube faces the user is not in the text",
    "draw-circle": "the mouse would have to go round; drags are straight",
    "hover-shape": "the page never ends and gives no reward",
    "moving-items": "ten circles must be clicked in ten seconds, each action takes one",
    "number-checkboxes": "how a digit is to be drawn is shown as a picture",
    "simon-says": "the order is shown by buttons that light up before the page is read",
}
# Pages that pay for precision give 1 to nobody: from this raw reward on it is a success.
ENOUGH = {"bisect-angle": 0.8, "circle-center": 0.8, "find-midpoint": 0.8, "right-angle": 0.8}
# Pages that carry something from one problem to the next, or are known to by miniwob's authors.
RELOADED = frozenset(
    (
        "book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy", "choose-date-medium",
        "choose-date-nodelay", "click-dialog", "click-dialog-2", "click-pie", "click-pie-nodelay", "click-scroll-list",
        "drag-cube", "focus-text-2", "hot-cold", "hover-shape", "moving-items", "order-food", "phone-book",
        "scroll-text", "scroll-text-2", "search-engine", "simon-says", "social-media", "social-media-all",
        "social-media-some", "stock-market", "terminal", "use-colorwheel", "use-colorwheel-2",
    )
)  # fmt: skip


@cache
def html_folder() -> Path:
    """Where the pages lie. The package is not imported: that would load Selenium and gymnasium."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("The web environment needs the miniwob package; install it with: pip install 'bough[web]'")
    return Path(next(iter(spec.submodule_search_locations))) / "html" / "miniwob"


@cache
def all_pages() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in html_folder().glob("*.html")))


def text_pages() -> tuple[str, ...]:
    """All pages that goal and text are enough for."""
    return tuple(page for page in all_pages() if page not in NOT_FOR_TEXT)
