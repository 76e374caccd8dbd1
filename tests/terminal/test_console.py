import pytest

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
