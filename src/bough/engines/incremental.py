"""Tokens to text while they are sampled: each piece when it is certain, never half a character."""

from __future__ import annotations

from collections.abc import Callable

from bough.calls.template import ChatTemplate

# What a tokenizer writes for bytes that are not, or not yet, a character.
UNFINISHED = "\ufffd"
# Tokens without a complete character, after which no more text is passed on.
MAX_PENDING = 64


class IncrementalText:
    """Passes the text of tokens on to `on_text`.

    Some tokenizers write a token differently at the start of a text, so new tokens are decoded
    together with those of the piece before them, whose text is then cut off.
    """

    def __init__(self, template: ChatTemplate, on_text: Callable[[str], None]) -> None:
        self._template, self._on_text = template, on_text
        self._before: list[int] = []
        self._new: list[int] = []

    def add(self, ids: list[int]) -> None:
        self._new += [token for token in ids if token not in self._template.stop_ids]
        # A character has at most four bytes: what is not one by then never becomes one, and is not decoded for ever.
        if not self._new or len(self._new) > MAX_PENDING:
            return
        known = self._template.decode(self._before)
        text = self._template.decode(self._before + self._new)
        if len(text) <= len(known) or text.endswith(UNFINISHED):
            return
        self._before, self._new = self._new, []
        self._on_text(text[len(known) :])
