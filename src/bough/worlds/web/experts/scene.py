"""What an expert looks at and what it answers: the goal and the lines in, one call and a thought out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import JsonValue

from bough.types import ToolCall
from bough.worlds.web.actions import Action, Line


class StuckError(LookupError):
    """The expert does not find what it looks for."""


class Advice(NamedTuple):
    """What to do next, and why."""

    call: ToolCall
    thought: str


@dataclass(frozen=True)
class Scene:
    """The goal, what the page shows, and what was done so far."""

    goal: str
    lines: Sequence[Line]
    history: Sequence[Action] = ()
    seen: Sequence[Sequence[Line]] = ()  # what the page showed before each of these

    @property
    def elements(self) -> list[Line]:
        return [line for line in self.lines if line.number]

    @property
    def texts(self) -> list[str]:
        return [line.name for line in self.lines if not line.number]

    @property
    def quoted(self) -> list[str]:
        """What stands in double quotes in the goal."""
        return re.findall(r'"([^"]*)"', self.goal)

    @property
    def views(self) -> list[Sequence[Line]]:
        """What the page has shown, from the start to now."""
        return [*self.seen, self.lines]

    def goal_match(self, pattern: str) -> re.Match[str]:
        return matched(re.search(pattern, self.goal))

    def text_match(self, pattern: str) -> re.Match[str]:
        return matched(re.search(pattern, "\n".join(self.texts)))

    def ordinal(self) -> int:
        """The place that the goal names: 3 for "3rd"."""
        return int(self.goal_match(r"\b(\d+)(?:st|nd|rd|th)\b")[1])

    def all(self, *kinds: str, **facts: object) -> list[Line]:
        """The elements of these kinds (all if none is named) that have these facts."""
        return [
            line
            for line in self.elements
            if (not kinds or line.kind in kinds) and all(line.facts.get(name) == fact for name, fact in facts.items())
        ]

    def named(self, name: str, *kinds: str) -> Line:
        """The first element called so."""
        return first(line for line in self.all(*kinds) if line.name == name)

    def submit(self) -> Line:
        return first(line for line in self.elements if line.name in ("Submit", "submit"))

    def last_click(self, line: Line) -> int:
        """When an element was last clicked; -1 if never."""
        clicks = [turn for turn, action in enumerate(self.history) if action.name == "click"]
        return max((turn for turn in clicks if self.history[turn].arguments["element"] == line.number), default=-1)

    def at_first(self, line: Line) -> Line:
        """The element as it was when it was first seen."""
        return first(past for view in self.views for past in view if past.number == line.number)


Expert = Callable[[Scene], Advice]


def first(lines: Iterable[Line]) -> Line:
    for line in lines:
        return line
    raise StuckError


def matched(match: re.Match[str] | None) -> re.Match[str]:
    if match is None:
        raise StuckError
    return match


def has_class(line: Line, name: str) -> bool:
    return name in str(line.facts.get("class", "")).split()


def advice(thought: str, name: str, *arguments: JsonValue) -> Advice:
    return Advice(ToolCall(name=name, arguments={str(i): argument for i, argument in enumerate(arguments)}), thought)


def click(line: Line, thought: str | None = None) -> Advice:
    label = line.name or line.facts.get("class") or line.facts.get("id") or line.kind
    return advice(thought or f"I click {label!r}.", "click", str(line.number))


def hover(line: Line) -> Advice:
    return advice(f"I open {line.name!r}.", "hover", str(line.number))


def fill(line: Line, text: str) -> Advice:
    return advice(f"I write {text!r} into the field.", "fill", str(line.number), text)


def fill_then(wanted: Sequence[tuple[Line, str]], then: Line) -> Advice:
    """Fills the fields that do not have the wanted text yet, then clicks."""
    for line, text in wanted:
        if line.facts.get("value") != text:
            return fill(line, text)
    return click(then, f"All is filled in; I click {then.name!r}.")


def check_then(boxes: Sequence[Line], wanted: Callable[[Line], bool], then: Line) -> Advice:
    """Sets each box as wanted, then clicks."""
    for box in boxes:
        if bool(box.facts.get("checked")) != wanted(box):
            return click(box)
    return click(then, f"The boxes are right; I click {then.name!r}.")
