"""What a page shows, as lines of text: numbered elements (or elements with selectors) and the text between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
