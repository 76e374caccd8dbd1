"""Markdown from untrusted text: what models, environments and data files contain is quoted, never interpreted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bough.terminal.console import printable

SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$!&]|(?<=www)\.|:(?=//)|@")
LINE_ENDS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029\t]+")


def plain(text: object) -> str:
    """One line of text, escaped so that it is shown literally anywhere in a page."""
    return SPECIAL.sub(lambda match: "\\" + match[0], _one_line(text))


def code(text: object) -> str:
    """One line as a code span that is safe inside a table cell."""
    line = _one_line(text).strip().replace("|", "\\|") or "–"
    ticks = "`" * (_longest_run(line) + 1)
    pad = " " if "`" in line else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def fenced(text: str, language: str = "") -> str:
    """A fenced code block whose fence is longer than any in `text`."""
    lines = "\n".join(printable(line) for line in re.split(r"\r\n|\r|\n", text))
    fence = "`" * max(3, _longest_run(lines) + 1)
    return f"{fence}{language}\n{lines.rstrip()}\n{fence}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are already Markdown."""
    lines = [" | ".join(headings), " | ".join("---" for _ in headings), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _one_line(text: object) -> str:
    return printable(LINE_ENDS.sub(" ", str(text)))


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
