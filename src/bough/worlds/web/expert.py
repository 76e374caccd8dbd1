"""The expert: one function for each page, by name."""

from __future__ import annotations

from collections.abc import Sequence

from bough.worlds.web.actions import Action
from bough.worlds.web.experts import clicking, dates, drawing, filling, moving, posts, puzzles, reading, words, writing
from bough.worlds.web.experts.scene import Advice, Expert, Scene
from bough.worlds.web.page import View

EXPERTS: dict[str, Expert] = {
    page: expert
    for module in (clicking, filling, dates, reading, puzzles, posts, words, writing, moving, drawing)
    for page, expert in module.EXPERTS.items()
}


def advise(page: str, view: View, history: Sequence[Action], seen: Sequence[View] = ()) -> Advice | None:
    """What an expert would do on this page now; None where there is no expert, or it does not know."""
    expert = EXPERTS.get(page)
    if expert is None:
        return None
    try:
        return expert(Scene(view.goal, view.lines, history, [past.lines for past in seen]))
    except (LookupError, ValueError, StopIteration):  # what it looked for is not there
        return None
