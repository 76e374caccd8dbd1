"""What an agent can do on a page: the names, their parameters, and how a written call is bound to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from bough.errors import did_you_mean
from bough.types import ToolCall
from bough.worlds.web import keys

Reference = int | str
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
ELEMENT = Parameter("element", "element")
SIGNATURES = {
    signature.name: signature
    for signature in (
        Signature("click", (ELEMENT,), "click an element"),
        Signature("fill", (ELEMENT, Parameter("text", "text")), "replace what is in a text field"),
        Signature("select_option", (ELEMENT, Parameter("option", "options")), "choose from a list"),
        Signature("press", (Parameter("key", "key"),), "a key: Enter, Tab, ArrowDown, Control+a"),
        Signature(
            "type",
            (Parameter("text", "text"), Parameter("element", "element", optional=True)),
            "write where the cursor is",
        ),
        Signature(
            "scroll",
            (Parameter("direction", "direction"), Parameter("element", "element", optional=True)),
            "'up', 'down', 'top' or 'bottom': the page or an element",
        ),
        Signature("hover", (ELEMENT,), "move the mouse over an element"),
        Signature("drag", (ELEMENT, Parameter("target", "element")), "drag one element onto another"),
        Signature("select_text", (Parameter("text", "text"),), "mark a text on the page"),
        Signature("mouse_move", (Parameter("x", "number"), Parameter("y", "number")), "move the mouse to a point"),
        Signature("mouse_down", (Parameter("x", "number"), Parameter("y", "number")), "hold the button at a point"),
        Signature("mouse_up", (Parameter("x", "number"), Parameter("y", "number")), "let go at a point"),
        Signature("mouse_click", (Parameter("x", "number"), Parameter("y", "number")), "click a point"),
        Signature(
            "mouse_drag",
            tuple(Parameter(name, "number") for name in ("from_x", "from_y", "to_x", "to_y")),
            "drag from point to point",
        ),
        Signature("wait", (), "let a second pass"),
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
            return _reference(value)
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
            if not isinstance(value, str) or not value or not keys.known(value):
                raise UnknownActionError(f"{value!r} is not a key; allowed: {', '.join(keys.NAMED)}, a character.")
            return value
        case "direction":
            if value not in DIRECTIONS:
                raise UnknownActionError(f"direction must be one of {', '.join(map(repr, DIRECTIONS))}.")
            return value
        case "number":
            try:
                number = float(value) if isinstance(value, int | float | str) else float("nan")
            except (ValueError, OverflowError):
                number = float("nan")
            if not -1e4 < number < 1e4:
                raise UnknownActionError(f"{parameter.name} must be a number of pixels.")
            return number


def _reference(value: JsonValue) -> Reference:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip():
        number = re.fullmatch(r"\[?\s*(\d{1,9})\s*\]?", value.strip())
        return int(number[1]) if number else value.strip()
    raise UnknownActionError("An element is named by its number or its selector.")


def _usage(signature: Signature) -> str:
    names = [f"{p.name}?" if p.optional else p.name for p in signature.parameters]
    return f"{signature.name} is used as {signature.name}({', '.join(names)})."
