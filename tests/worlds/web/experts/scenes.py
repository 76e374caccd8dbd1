"""Scenes by hand: text lines as they are, elements as (kind, name, facts), numbered as they come."""

from collections.abc import Callable
from typing import Any

from bough.chat.actions import function_text, read_call
from bough.worlds.web.actions import Line, bind
from bough.worlds.web.experts.scene import Advice, Scene

Written = str | tuple[str, str] | tuple[str, str, dict[str, Any]]


def lines(*written: Written) -> list[Line]:
    found, number = [], 0
    for line in written:
        if isinstance(line, str):
            found.append(Line(line))
            continue
        number += 1
        found.append(Line(line[1], number, line[0], f"#e{number}", line[2] if len(line) > 2 else {}))
    return found


def scene(goal: str, *written: Written, did: tuple[str, ...] = (), seen: list[list[Line]] | None = None) -> Scene:
    """What an expert looks at; `did` are the actions taken so far, `seen` what the page showed before each."""
    history = [bind(call) for action in did if (call := read_call(action))]
    now = lines(*written)
    return Scene(goal, now, history, seen if seen is not None else [now] * len(history))


def advice(expert: Callable[[Scene], Advice], goal: str, *written: Written, **more: Any) -> str:
    """What an expert does there, as it is written."""
    return function_text(expert(scene(goal, *written, **more)).call)
