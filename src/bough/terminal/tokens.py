"""Tokens in colour: trained tokens are green between ⟦ ⟧, all others are context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from bough.formats.bough import common_prefix
from bough.plural import plural
from bough.terminal.console import printable
from bough.types import Call

# Neighbouring tokens differ in shade to show their boundaries.
SHADES = ("bold green", "bold bright_green underline")


def coloured(calls: list[Call], tokenizer: Any) -> Iterator[Text]:
    """One text per call; the prefix shared with the call before is not repeated."""
    previous: list[int] = []
    for number, call in enumerate(calls, 1):
        shared = common_prefix(previous, call.prompt_ids)
        text = Text(f"call {number}: ", "bold")
        if shared:
            text.append(f"… {plural(shared, 'shared token')} … ", "dim italic")
        text.append(printable(tokenizer.decode(call.prompt_ids[shared:])), "dim")
        text.append("⟦", "green")
        for i, token in enumerate(call.completion_ids):
            text.append(printable(tokenizer.decode([token])), SHADES[i % 2])
        text.append("⟧", "green")
        yield text
        previous = call.prompt_ids + call.completion_ids
