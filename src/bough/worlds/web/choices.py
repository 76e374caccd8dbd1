"""Possible actions on a page, for an agent that plays at random."""

from __future__ import annotations

import re

from bough.types import ToolCall
from bough.worlds.web.page import View

FIELDS = {"text", "password", "textarea", "number", "search", "email"}


def choices(view: View) -> list[ToolCall]:
    """A click on each element, the options of each list, the goal's words in each field."""
    words = list(dict.fromkeys(re.findall(r'"([^"]+)"', view.goal))) or view.goal.split()[-1:]
    calls = []
    for line in view.lines:
        if not line.number or line.facts.get("disabled"):
            continue
        number = str(line.number)
        if line.kind == "select":
            options = [option for option in line.facts["options"] if option]
            calls += [ToolCall(name="select_option", arguments={"0": number, "1": option}) for option in options]
            continue
        calls.append(ToolCall(name="click", arguments={"0": number}))
        if line.kind in FIELDS:
            calls += [ToolCall(name="fill", arguments={"0": number, "1": word}) for word in words]
    return calls
