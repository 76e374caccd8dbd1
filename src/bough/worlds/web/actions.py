"""What an agent can do on a page: the names, their parameters, and how a written call is bound to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic import JsonValue

from bough.errors import did_you_mean
from bough.types import ToolCall

Kind = Literal["element", "text", "key", "options", "direction", "number"]


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: Kind
    optional: bool = False


@dataclass(frozen=True)
class Signature:
    """An action and its parameters. `about` is its description in the rules."""

    name: str
    parameters: tuple[Parameter, ...]
    about: str


@dataclass(frozen=True)
class Action:
    """A bound call: every argument is of its parameter's kind, and absent ones are None."""

    name: str
    arguments: Mapping[str, JsonValue]


class UnknownActionError(ValueError):
    """An unknown action or wrong arguments. The message is for the agent."""


# Keys are pressed one by one: a text without an end would take longer than a step may. Tasks need a tenth of it.
MAX_TEXT = 1_000
DIRECTIONS = ("up", "down", "top", "bottom")


def _signature(name: str, parameters: str, about: str) -> Signature:
    """Each parameter by its name, `:` and its kind where that is called otherwise, `?` where it is optional."""
    found = []
    for word in parameters.split():
        label, _, kind = word.rstrip("?").partition(":")
        found.append(Parameter(label, cast(Kind, kind or label), optional=word.endswith("?")))
    return Signature(name, tuple(found), about)


POINT = "x:number y:number"
SIGNATURES = {
    signature.name: signature
    for signature in (
        _signature("click", "element", "click an element"),
        _signature("fill", "element text", "replace what is in a text field"),
        _signature("select_option", "element option:options", "choose from a list"),
        _signature("press", "key", "a key: Enter, Tab, ArrowDown, Control+a"),
        _signature("type", "text element?", "write where the cursor is"),
        _signature("scroll", "direction element?", "'up', 'down', 'top' or 'bottom': the page or an element"),
        _signature("hover", "element", "move the mouse over an element"),
        _signature("drag", "element target:element", "drag one element onto another"),
        _signature("select_text", "text", "mark a text on the page"),
        _signature("mouse_move", POINT, "move the mouse to a point"),
        _signature("mouse_down", POINT, "hold the button at a point"),
        _signature("mouse_up", POINT, "let go at a point"),
        _signature("mouse_click", POINT, "click a point"),
        _signature("mouse_drag", "from_x:number from_y:number to_x:number to_y:number", "drag from point to point"),
        _signature("wait", "", "let a second pass"),
    )
}


def bind(call: ToolCall) -> Action:
    """The action of a call. Positional arguments are named "0", "1", …"""
    signature = SIGNATURES.get(call.name.lower())
    if signature is None:
        raise UnknownActionError(f"There is no action {call.name}{did_you_mean(call.name.lower(), SIGNATURES)}.")
    given = dict(call.arguments)
    if "selector" in given and "element" not in given:
        given["element"] = given.pop("selector")
    names = [parameter.name for parameter in signature.parameters]
    bound: dict[str, JsonValue] = {}
    for key, value in given.items():
        name = names[int(key)] if key.isdecimal() and int(key) < len(names) else key
        if name not in names or name in bound:
            raise UnknownActionError(_usage(signature))
        bound[name] = value
    for parameter in signature.parameters:
        value = bound.get(parameter.name)
        if value is None and not parameter.optional:
            raise UnknownActionError(_usage(signature))
        bound[parameter.name] = None if value is None else _as(parameter, value)
    return Action(signature.name, bound)


def _as(parameter: Parameter, value: JsonValue) -> JsonValue:
    """The argument as its kind."""
    match parameter.kind:
        case "element":
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            if isinstance(value, str) and value.strip():
                number = re.fullmatch(r"\[?\s*(\d{1,9})\s*\]?", value.strip())
                return int(number[1]) if number else value.strip()
            raise UnknownActionError("An element is named by its number or its selector.")
        case "text":
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise UnknownActionError(f"{parameter.name} must be text.")
            text = str(value)
            if len(text) > MAX_TEXT:
                raise UnknownActionError(
                    f"{parameter.name} has {len(text):,} characters; at most {MAX_TEXT:,} can be written at once."
                )
            return text
        case "options":
            options = value if isinstance(value, list) else [value]
            if not options or not all(isinstance(o, str | int | float) and not isinstance(o, bool) for o in options):
                raise UnknownActionError("option must be an option's text, or a list of them.")
            return [str(option) for option in options]
        case "key":
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 9:
                return str(value)
            if not isinstance(value, str) or not value or not known(value):
                raise UnknownActionError(f"{value!r} is not a key; allowed: {', '.join(NAMED)}, a character.")
            return value
        case "direction":
            if value not in DIRECTIONS:
                raise UnknownActionError(f"direction must be one of {', '.join(map(repr, DIRECTIONS))}.")
            return value
        case "number":
            try:
                pixels = float(value) if isinstance(value, int | float | str) else float("nan")
            except (ValueError, OverflowError):
                pixels = float("nan")
            if not -1e4 < pixels < 1e4:
                raise UnknownActionError(f"{parameter.name} must be a number of pixels.")
            return pixels


def _usage(signature: Signature) -> str:
    names = [f"{p.name}?" if p.optional else p.name for p in signature.parameters]
    return f"{signature.name} is used as {signature.name}({', '.join(names)})."


# Keys by name, as the DevTools protocol wants them pressed: `Enter`, `a`, `Control+a`.

NAMED = {  # and their virtual key codes
    "Enter": 13, "Tab": 9, "Backspace": 8, "Delete": 46, "Escape": 27, "Space": 32, "ArrowLeft": 37, "ArrowUp": 38,
    "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "PageUp": 33, "PageDown": 34,
}  # fmt: skip
WRITING = {"Enter": "\r", "Space": " "}
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
        code, number, text = key, NAMED[key], WRITING.get(key, "")
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


# What a page shows, as lines of text: numbered elements (or elements with selectors) and the text between them.

LONGEST_NAME = 400


@dataclass(frozen=True)
class Line:
    """One line: an element with a number, or plain text (number 0, the text in `name`)."""

    name: str
    number: int = 0
    kind: str = ""
    selector: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_line(seen: Mapping[str, Any]) -> Line:
    if "text" in seen:
        return Line(seen["text"])
    return Line(seen["name"], seen["number"], seen["kind"], seen["selector"], seen["facts"])


def render(lines: Iterable[Line], *, selectors: bool = False) -> str:
    """The lines as the agent reads them."""
    return "\n".join(_written(line, selectors) for line in lines)


def _written(line: Line, selectors: bool) -> str:
    if not line.number:
        return line.name
    words = [line.kind] if selectors else [f"[{line.number}] {line.kind}"]
    if line.name:
        words.append(_quoted(line.name))
    words += [_fact(name, value) for name, value in line.facts.items() if not (selectors and name == "id")]
    if selectors:
        words.append(f'selector="{line.selector}"')
    return " ".join(word for word in words if word)


def _fact(name: str, value: Any) -> str:
    if value is True:
        return name
    if value is False:
        return ""
    if isinstance(value, list):
        return f"{name}={', '.join(map(_quoted, value))}"
    if name in ("value", "class"):
        return f"{name}={_quoted(str(value))}"
    return f"{name}={value}"


def _quoted(text: str) -> str:
    text = text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "…"
    return f"'{text}'" if "'" not in text else f'"{text}"'
