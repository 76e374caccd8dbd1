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
        # For each control token where it starts and ends in the text, and its place among the ids.
        self._places: list[tuple[int, int, int]] = []
        # Where the part of the text and of the ids begins whose control tokens are not looked up yet.
        self._unread = (0, 0)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, as `ControlTokens.encode` gives them."""
        common = common_prefix(self._text, text)
        if common:
            self._read()  # only now: most texts have no successor
        while self._places and self._places[-1][1] > common:
            self._places.pop()
        # The last control token that both texts share: the ids before it stay.
        begin, _, kept = self._places.pop() if self._places else (0, 0, 0)
        self._text, self._tokens = text, self._tokens[:kept] + self._control.encode(text[begin:])
        self._unread = begin, kept
        return list(self._tokens)

    def _read(self) -> None:
        """Looks up the control tokens in what was encoded last."""
        begin, kept = self._unread
        spans = [match.span() for match in self._special.finditer(self._text, begin)]
        places = [i for i in range(kept, len(self._tokens)) if self._tokens[i] in self._ids]
        if len(spans) == len(places):  # else one of them is part of a longer token
            self._places += [(*span, place) for span, place in zip(spans, places, strict=True)]
