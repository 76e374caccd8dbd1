"""Keys by name, as the DevTools protocol wants them pressed: `Enter`, `a`, `Control+a`."""

from __future__ import annotations

from typing import Any

NAMED: dict[str, tuple[str, int, str]] = {
    # name: code, virtual key code, what it writes
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "Escape": ("Escape", 27, ""),
    "Space": ("Space", 32, " "),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    "PageUp": ("PageUp", 33, ""),
    "PageDown": ("PageDown", 34, ""),
}
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
# What the browser's own editor does on these; headless, the keys alone do nothing.
EDITING = {"a": "selectAll", "z": "undo"}


def known(combination: str) -> bool:
    """Whether this is a key, or modifiers and a key."""
    *modifiers, key = _parts(combination)
    return all(name in MODIFIERS for name in modifiers) and (key in NAMED or len(key) == 1)


def strokes(combination: str) -> list[dict[str, Any]]:
    """The key events of one combination: down, then up."""
    *modifiers, key = _parts(combination)
    mask = sum(MODIFIERS[name] for name in set(modifiers))
    if key in NAMED:
        code, number, text = NAMED[key]
        name = " " if key == "Space" else key
    else:
        number = ord(key.upper()) if key.isascii() and key.isalnum() else 0
        name, text = key, key
        code = f"Key{key.upper()}" if key.isascii() and key.isalpha() else f"Digit{key}" if key.isdecimal() else ""
    event: dict[str, Any] = {"key": name, "code": code, "windowsVirtualKeyCode": number, "modifiers": mask}
    plain = not mask & ~MODIFIERS["Shift"]
    down = {"type": "keyDown" if text and plain else "rawKeyDown", **event}
    if text and plain:
        down["text"] = text
    if mask == MODIFIERS["Control"] and key.lower() in EDITING:
        down["commands"] = [EDITING[key.lower()]]
    return [down, {"type": "keyUp", **event}]


def _parts(combination: str) -> list[str]:
    # The last character may itself be a plus.
    head, plus, key = combination[:-1].rpartition("+")
    return [*head.split("+"), key + combination[-1:]] if plus else [combination]
