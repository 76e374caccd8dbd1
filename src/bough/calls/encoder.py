"""Encodes texts to token ids and reuses the ids of the prefix shared with the text before.

The prompts of an episode grow by a step at a time, and a tokenizer splits text at its
control tokens before anything else. So the ids of everything in front of a control
token stay the same whatever comes after it, and only the rest needs encoding.
"""

from __future__ import annotations

from bough.calls.control import ControlTokens, any_of
from bough.formats.bough import common_prefix


class Encoder:
    """Encodes texts, best in the order in which they grow out of each other."""

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        tokenizer = control.tokenizer
        added = [(i, t) for i, t in tokenizer.added_tokens_decoder.items() if t.special and t.content in control.tokens]
        # A token that swallows white space to its left changes what stands before it; any text may become <unk>.
        tokens = {i: t.content for i, t in added if not t.lstrip and t.content != tokenizer.unk_token}
        self._ids = frozenset(tokens)
        self._special = any_of(tokens.values())
        self._text = ""
        self._tokens: list[int] = []

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, as `ControlTokens.encode` gives them."""
        characters, tokens = self._reusable(text)
        self._text, self._tokens = text, self._tokens[:tokens] + self._control.encode(text[characters:])
        return list(self._tokens)

    def _reusable(self, text: str) -> tuple[int, int]:
        """Number of characters and of tokens before the last control token that both texts share."""
        common = common_prefix(self._text, text)
        starts = [match.start() for match in self._special.finditer(text, 0, common)]
        if not starts:
            return 0, 0
        positions = [i for i, token in enumerate(self._tokens) if token in self._ids]
        return starts[-1], positions[len(starts) - 1]
