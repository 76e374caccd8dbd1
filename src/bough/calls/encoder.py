"""Encodes texts to token ids and reuses the ids of the prefix shared with the text before.

The prompts of an episode grow by a step at a time, and a tokenizer splits text at its
control tokens before anything else. So the ids of everything in front of a control
token stay the same whatever comes after it, and only the rest needs encoding.
"""

from __future__ import annotations

from bough.calls.control import ControlTokens
from bough.formats.bough import common_prefix


class Encoder:
    """Encodes texts, best in the order in which they grow out of each other."""

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._ids, self._special = control.cuts
        self._text = ""
        self._tokens: list[int] = []
        # For each of these tokens where it starts and ends in the text, and its place among the ids.
        self._places: list[tuple[int, int, int]] = []

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, as `ControlTokens.encode` gives them."""
        common = common_prefix(self._text, text)
        while self._places and self._places[-1][1] > common:
            self._places.pop()
        # The last control token that both texts share: the ids before it stay.
        begin, _, kept = self._places.pop() if self._places else (0, 0, 0)
        new = self._control.encode(text[begin:])
        self._text, self._tokens = text, self._tokens[:kept] + new
        spans = [match.span() for match in self._special.finditer(text, begin)]
        places = [kept + i for i, token in enumerate(new) if token in self._ids]
        if len(spans) == len(places):  # else one of them is part of a longer token
            self._places += [(*span, place) for span, place in zip(spans, places, strict=True)]
        return list(self._tokens)
