"""Gymnasium in words: what an environment's docstring says, its observations as text, the action in a reply.

Docstrings of Gymnasium have a section per topic ("## Action Space"); the list in that one,
`- 0: Move left`, names the actions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

SECTION = re.compile(r"^[ \t]*##[ \t]+(.+?)[ \t]*$", re.MULTILINE)
ACTION = re.compile(r"^[ \t]*[-*][ \t]*(\d+)[ \t]*:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|<[^>]+>")
# Text of another background colour marks where the player is.
MARKED = re.compile(r"\x1b\[(?:[\d;]*;)?4[0-7](?:;[\d;]*)?m(.*?)\x1b\[0m")
COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True)
class GymDocument:
    """An environment's docstring by sections; "" is what precedes the first."""

    sections: Mapping[str, str]

    @classmethod
    def of(cls, gym: gymnasium.Env[Any, Any]) -> GymDocument:
        text = inspect.getdoc(type(gym.unwrapped)) or ""
        first, *rest = SECTION.split(LINK.sub(r"\1", text))
        sections = {name.lower(): body.strip() for name, body in zip(rest[::2], rest[1::2], strict=True)}
        return cls({"": first.strip(), **sections})

    def rules(self, legend: str | None) -> str:
        """What the agent needs to know: the rules, and the `legend` of a picture or else the meaning of the numbers."""
        seen = self.sections.get("observation space") if legend is None else legend
        return "\n\n".join(filter(None, [self.sections[""], self.sections.get("description"), seen]))

    def actions(self, numbers: range) -> list[str]:
        """The names of the actions, or their numbers where the docstring does not name all of them."""
        named = {
            int(number): " ".join(re.sub(r"\([^)]*\)|`", "", name).lower().split())
            for number, name in ACTION.findall(self.sections.get("action space", ""))
        }
        names = [named.get(number, "") for number in numbers]
        if not all(names) or len(set(names)) < len(names):
            return [str(number) for number in numbers]
        shorter = [name.removeprefix("move ") for name in names]
        return shorter if all(name.startswith("move ") for name in names) else names


def show(gym: gymnasium.Env[Any, Any], seen: Any, *, rendered: bool) -> str:
    """An observation as the agent reads it."""
    words = DESCRIPTIONS.get(type(gym.unwrapped).__name__)
    if words is not None:
        return str(words(gym.unwrapped, seen))
    if rendered:
        picture = str(gym.render() or "")
        return COLOUR.sub("", MARKED.sub(r"[\1]", picture)).strip("\n")
    return _plain(seen)


def _plain(seen: Any) -> str:
    if isinstance(seen, str):
        return seen
    if isinstance(seen, Mapping):
        return "\n".join(f"{name}: {_plain(value)}" for name, value in seen.items())
    if isinstance(seen, tuple | list):
        return f"({', '.join(map(_plain, seen))})"
    if hasattr(seen, "tolist"):
        values = seen.tolist()
        return _plain(values) if isinstance(values, list) else _plain_number(values)
    return _plain_number(seen)


def _plain_number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _taxi(gym: Any, seen: Any) -> str:
    """Taxi's picture says who is where by colours alone."""
    row, column, passenger, destination = gym.decode(int(seen))
    places = ("Red", "Green", "Yellow", "Blue", "the taxi")
    landmarks = ", ".join(f"{name} ({r}, {c})" for name, (r, c) in zip(places, gym.locs, strict=False))
    picture = "\n".join(line.tobytes().decode() for line in gym.desc)
    return (
        f"{picture}\nRows count from the top and columns from the left, both from 0. "
        f"The letters are the landmarks (row, column): {landmarks}.\n"
        f"The taxi is at ({row}, {column}). The passenger is in {places[passenger]}. "
        f"The destination is {places[destination]}."
    )


DESCRIPTIONS = {"TaxiEnv": _taxi}
# What the letters of a picture mean.
LEGENDS = {
    "FrozenLakeEnv": "S is the start, F is frozen, H is a hole, G is the goal. Brackets mark where you are.",
    "CliffWalkingEnv": "x is where you are, C is the cliff, T is the goal, o is free.",
}


def legend_of(gym: gymnasium.Env[Any, Any], *, rendered: bool) -> str | None:
    """How to read what `show` returns; None where it shows plain numbers."""
    name = type(gym.unwrapped).__name__
    return LEGENDS.get(name, "") if rendered or name in DESCRIPTIONS else None


def read_action(text: str, actions: Sequence[str]) -> int | None:
    """The index of the action that a reply names. Models reason aloud before they commit, so the last one counts."""
    longest_first = sorted(actions, key=len, reverse=True)
    named = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", text.lower())
    if named:
        return list(actions).index(named[-1])
    return int(text) if text.isdecimal() and len(text) < 6 and int(text) < len(actions) else None
