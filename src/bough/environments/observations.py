"""Whether what an environment returned is an observation that can be shown, counted and written down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from operator import attrgetter
from typing import Any

from pydantic_core import from_json, to_json

from bough.environments.base import EnvironmentFailedError, Observation
from bough.errors import short_repr
from bough.types import Message

# All text of one observation, in characters. The longest pages and tool outputs are a hundredth of it.
MAX_TEXT = 10_000_000
KINDS: dict[str, tuple[type[Any] | tuple[type[Any], ...], str]] = {
    "messages": ((tuple, list), "a tuple of messages"),
    "tools": ((tuple, list), "a tuple of JSON objects"),
    "terminated": (bool, "True or False"),
    "truncated": (bool, "True or False"),
    "success": ((bool, type(None)), "True, False or None"),
    "action": ((str, type(None)), "text or None"),
    "error": ((str, type(None)), "text or None"),
    "stop": ((str, type(None)), "text or None"),
    "images": ((tuple, list), "a tuple of PNG files as bytes"),
    "state": ((str, type(None)), "text or None"),
}


_fields = attrgetter(*KINDS)
_kinds = [kinds for kinds, _ in KINDS.values()]


def check_observation(what: str, given: Any) -> Observation:
    """The observation that `what` returned, as it is. Raises EnvironmentFailedError saying what is wrong with it."""
    if not isinstance(given, Observation):
        name = "None" if given is None else f"a {type(given).__name__}"
        raise EnvironmentFailedError(f"{what} returned {name}; it must return an Observation")
    values = _fields(given)
    if not all(map(isinstance, values, _kinds)):
        for value, (name, (kinds, allowed)) in zip(values, KINDS.items(), strict=True):
            if not isinstance(value, kinds):
                raise EnvironmentFailedError(f"{what} gave the {name} {short_repr(value)}; it must be {allowed}")
    for name, kind in (("messages", Message), ("tools", Mapping), ("images", bytes)):
        for value in getattr(given, name):
            if not isinstance(value, kind):
                raise EnvironmentFailedError(
                    f"{what} gave {short_repr(value)} among its {name}; it must be {KINDS[name][1]}"
                )
    for name in ("reward", "progress"):
        value = getattr(given, name)
        if value is not None and not _finite(value):
            shown = short_repr(value)
            raise EnvironmentFailedError(f"{what} gave the {name} {shown}; it must be a finite number or None")
    _check_text(what, given)
    if given.tools:
        _check_tools(what, given)
    return given


def _finite(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except (OverflowError, ValueError):
        return False


def _check_text(what: str, given: Observation) -> None:
    said = [text for message in given.messages for text in (message.content, message.hint, message.reasoning)]
    texts = [text for text in (*said, given.action, given.error, given.stop, given.state) if text]
    if (size := sum(map(len, texts))) > MAX_TEXT:
        raise EnvironmentFailedError(f"{what} returned {size:,} characters; at most {MAX_TEXT:,} are allowed")
    for text in texts:
        check_unicode(what, text)


def _check_tools(what: str, given: Observation) -> None:
    """Tools are part of every prompt and of the record, which has them deeper than they are here."""
    try:
        text = to_json({"record": [{"tools": given.tools}]}, fallback=dict)
        from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise EnvironmentFailedError(f"{what} gave tools that cannot be kept as JSON: {error!s:.200}") from None
    if len(text) > MAX_TEXT:
        raise EnvironmentFailedError(
            f"{what} gave tools of {len(text):,} bytes of JSON; at most {MAX_TEXT:,} are allowed"
        )


def check_unicode(what: str, text: str) -> None:
    """Raises EnvironmentFailedError for a text that can be written to no file."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EnvironmentFailedError(
            f"{what} returned text with half a surrogate pair at character {error.start + 1}; it must be valid Unicode"
        ) from None
