"""The pieces of which figures are made: text and the SVG around it, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

INK, FAINT = "#76808c", "#76808c55"
WIDTH = 760


def text_at(x: float, y: float, content: str, anchor: str = "start") -> str:
    """A line of text; `anchor` says which part of it is at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(content)}</text>'


def document(height: int, about: str, parts: Sequence[str]) -> str:
    """The whole figure; `about` is what a screen reader says of it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">'
    )
    return "\n".join([head, f"<title>{escape(about)}</title>", *parts, "</svg>", ""])
