"""Texts that end an answer, looked for while it is being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SPARE = 4  # a character cut at the window's edge shows as up to this many others


class StopTexts:
    """Says after each token whether an answer now ends: whether one of `texts` is complete in it.

    The answer keeps the token that completed the text, whole: its ids and its text agree.
    Only the tail is decoded, long enough for the longest text and the newest token.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self.texts, self.tokenizer = [text for text in texts if text], tokenizer
        self._longest = max(map(len, self.texts), default=0)

    def met(self, ids: list[int]) -> bool:
        """Whether the last token of `ids` completed a stop text."""
        if not self.texts:
            return False
        tail = self._tail(ids)
        return any(text in tail for text in self.texts)

    def _tail(self, ids: list[int]) -> str:
        newest = len(self.tokenizer.decode(ids[-1:]))
        window = self._longest + SPARE
        while True:
            text: str = self.tokenizer.decode(ids[-window:])
            if len(text) >= self._longest + newest + SPARE or window >= len(ids):
                return text
            window *= 2
