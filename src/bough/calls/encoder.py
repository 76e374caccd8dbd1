"""Text to token ids, with what the text before had in common not encoded again.

The prompts of an episode grow by a step at a time, and a tokenizer splits text at its
special tokens before anything else. So the ids of everything in front of a special
token stay the same whatever comes behind it, and only the rest needs encoding.
"""

from __future__ import annotations

import re
from typing import Any


class Encoder:
    """Encodes texts, best in the order in which they grow out of each other."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        # A token that swallows white space to its left changes what stands before it.
        tokens = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special and not t.lstrip}
        self._ids = frozenset(tokens)
        longest_first = sorted(tokens.values(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if tokens else None
        self._text = ""
        self._tokens: list[int] = []

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, as the tokenizer gives them without adding tokens of its own."""
        characters, tokens = self._reusable(text)
        rest = self.tokenizer(text[characters:], add_special_tokens=False)["input_ids"]
        self._text, self._tokens = text, self._tokens[:tokens] + list(rest)
        return list(self._tokens)

    def _reusable(self, text: str) -> tuple[int, int]:
        """How many characters, and how many tokens, in front of the last special token both texts share."""
        if self._special is None:
            return 0, 0
        common = common_length(self._text, text)
        starts = [match.start() for match in self._special.finditer(text, 0, common)]
        if not starts:
            return 0, 0
        positions = [i for i, token in enumerate(self._tokens) if token in self._ids]
        return starts[-1], positions[len(starts) - 1]


def common_length(left: str, right: str) -> int:
    """How many leading characters two strings share (by bisection: comparing slices is fast)."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
