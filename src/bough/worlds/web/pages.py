"""Facts about pages by name: which can be solved from text, which reward is enough, which must be reloaded.

Each list was found by trying (`benchmarks/web_pages.py`, `web_expert.py`, `web_restart.py`);
a page that a later miniwob adds can be played too, but is not in the default.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from bough.errors import InputError

# Pages that need vision, or cannot be won at all.
NOT_FOR_TEXT = {
    "count-sides": "the shape is drawn on a canvas",
    "hover-shape": "the page never ends and gives no reward",
}
# Pages whose reward depends on the distance in pixels or degrees. The full reward needs a point between pixels and
# comes by luck, if at all (27 of 400 tries); an expert that corrects its dot reaches these values on all of 100 seeds.
ENOUGH = {
    "bisect-angle": 0.95,
    "chase-circle": 0.9,  # the time before the mouse first reaches the circle is lost to every agent
    "circle-center": 0.95,
    "find-midpoint": 0.95,
    "right-angle": 0.9,
}
# Pages that never settle: an action takes this many milliseconds of their clock, so that an agent can keep up.
RESTLESS = {"chase-circle": 350, "hover-shape": 300, "moving-items": 350, "simon-says": 200}
# Pages whose layout breaks without a font as narrow as Arial, and the style that repairs it.
MENDED = {"daily-calendar": ".hour .hour-label { width: 17% !important }"}
# Pages that put what is typed into their HTML, where a script in it would run: the functions that do so.
ESCAPED = {"terminal": ("generateTerminalLine", "generateTerminalOutput")}
# Pages that keep state from one problem to the next (`benchmarks/results/web_restart.md`), their variants, and those
# that miniwob's authors call not deterministic.
RELOADED = frozenset(
    (
        "book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy", "choose-date-medium",
        "choose-date-nodelay", "click-dialog", "click-dialog-2", "click-pie", "click-pie-nodelay", "click-scroll-list",
        "drag-cube", "draw-circle", "focus-text-2", "hot-cold", "hover-shape", "moving-items", "order-food",
        "phone-book", "scroll-text", "scroll-text-2", "search-engine", "sign-agreement", "simon-says", "social-media",
        "social-media-all", "social-media-some", "stock-market", "terminal", "use-colorwheel", "use-colorwheel-2",
        "use-slider", "use-slider-2",
    )
)  # fmt: skip


@cache
def html_folder() -> Path:
    """The folder of the pages. The package is not imported: that would load Selenium and gymnasium."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("The web environment needs the miniwob package; install it with: pip install 'bough[web]'")
    return Path(next(iter(spec.submodule_search_locations))) / "html" / "miniwob"


@cache
def all_pages() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in html_folder().glob("*.html")))


def text_pages() -> tuple[str, ...]:
    """All pages that can be solved from goal and text."""
    return tuple(page for page in all_pages() if page not in NOT_FOR_TEXT)
