"""What an expert looks at and what it answers: the goal and the lines in, one call and a thought out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from bough.types import ToolCall
from bough.worlds.web.actions import Action, Line


class StuckError(LookupError):
    """The expert does not find what it looks for."""


@dataclass(frozen=True)
class Advice:
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

    def goal_match(self, pattern: str) -> re.Match[str]:
        return matched(re.search(pattern, self.goal))

    def text_match(self, pattern: str) -> re.Match[str]:
        return matched(re.search(pattern, "\n".join(self.texts)))

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

    def after_text(self, text: str) -> Iterator[Line]:
        """The elements that follow a line of text."""
        at = next((i for i, line in enumerate(self.lines) if not line.number and line.name == text), None)
        return iter(()) if at is None else (line for line in self.lines[at + 1 :] if line.number)

    def done(self, name: str) -> list[Action]:
        return [action for action in self.history if action.name == name]

    @property
    def views(self) -> list[Sequence[Line]]:
        """What the page has shown, from the start to now."""
        return [*self.seen, self.lines]

    def identified(self, *identities: str) -> Line | None:
        """The first element with one of these ids, None if there is none."""
        return next((line for line in self.elements if line.facts.get("id") in identities), None)

    def last_use(self, line: Line, *names: str) -> int:
        """When one of these actions (default: click) was last done to an element; -1 if never."""
        uses = [
            turn
            for turn, action in enumerate(self.history)
            if action.name in (names or ("click",)) and action.arguments.get("element") == line.number
        ]
        return max(uses, default=-1)

    def at_first(self, line: Line) -> Line:
        """The element as it was when it was first seen."""
        return first(past for view in self.views for past in view if past.number == line.number)

    @property
    def last(self) -> Action | None:
        """The newest action."""
        return self.history[-1] if self.history else None


Expert = Callable[[Scene], Advice]


def first(lines: Iterator[Line] | list[Line]) -> Line:
    line = next(iter(lines), None)
    if line is None:
        raise StuckError
    return line


def matched(match: re.Match[str] | None) -> re.Match[str]:
    if match is None:
        raise StuckError
    return match


def call(name: str, *arguments: JsonValue) -> ToolCall:
    return ToolCall(name=name, arguments={str(i): argument for i, argument in enumerate(arguments)})


def click(line: Line, thought: str | None = None) -> Advice:
    label = line.name or line.facts.get("class") or line.facts.get("id") or line.kind
    return Advice(call("click", str(line.number)), thought or f"I click {label!r}.")


def hover(line: Line) -> Advice:
    return Advice(call("hover", str(line.number)), f"I open {line.name!r}.")


def fill(line: Line, text: str) -> Advice:
    return Advice(call("fill", str(line.number), text), f"I write {text!r} into the field.")


def fill_then(wanted: Sequence[tuple[Line, str]], then: Line) -> Advice:
    """Fills the fields that do not hold yet what they should, then clicks."""
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


def press(key: str, thought: str) -> Advice:
    return Advice(call("press", key), thought)


ORDINALS = {f"{n}{'th' if n not in (1, 2, 3) else ('st', 'nd', 'rd')[n - 1]}": n for n in range(1, 21)}


def ordinal(scene: Scene) -> int:
    """The place that the goal names: 3 for "3rd"."""
    return ORDINALS[scene.goal_match(r"\b(\d+(?:st|nd|rd|th))\b")[1]]
