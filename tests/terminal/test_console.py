from io import StringIO

import pytest
from rich.console import Console

from bough.terminal import console
from bough.terminal.console import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ☃ text\nwith\tlayout", "plain ☃ text\nwith\tlayout"),
        ("\x1b[2J", "␛[2J"),
        ("a\rb\x07", "a␍b␇"),
        ("\x9b31m\u202egnp.exe", "\ufffd31m\ufffdgnp.exe"),
    ],
)
def test_control_characters_become_visible_and_harmless(text: str, shown: str):
    assert printable(text) == shown


@pytest.mark.parametrize(("widgets", "live"), [(object(), True), (None, False)])
def test_a_notebook_has_progress_bars_where_it_can_draw_them(
    widgets: object, live: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(console, "find_spec", lambda name: widgets if name == "ipywidgets" else None)
    assert console.is_live(Console(force_jupyter=True)) is live
    assert console.is_live(Console(force_terminal=True))
    assert not console.is_live(Console(file=StringIO(), force_jupyter=False))
