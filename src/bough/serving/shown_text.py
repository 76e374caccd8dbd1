"""What of a reply can be shown while it is sampled: no stop text, no tool call, nothing that may become one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bough.speech import fenced, hermes
from bough.speech.marks import first_mark


class ShownText:
    """The text of one reply so far. `tool_names` are the tools that it may call."""

    def __init__(self, stop: Sequence[str], tool_names: Collection[str]) -> None:
        self._stop = list(stop)
        self._marks = [*stop, hermes.OPEN] if tool_names else self._stop
        self._undecided = fenced.Undecided(tool_names) if tool_names else None
        self._text = ""
        self._num_shown = 0
        self._ended = False

    def add(self, text: str) -> str:
        """What can be shown now that could not be shown before `text` followed.

        All of it together is a beginning of the content that the client would get if it did not stream.
        """
        if self._ended:
            return ""
        self._text += text
        if stops := [at for stop in self._stop if (at := self._text.find(stop, self._num_shown)) >= 0]:
            # The rest of a token is no part of the reply and says nothing about it.
            self._text, self._ended = self._text[: min(stops)], True
        end = first_mark(self._text, self._marks, self._num_shown)
        if self._undecided is not None:
            end = max(self._num_shown, min(end, self._undecided.first(self._text, self._num_shown)))
            # White space before a tool call is not part of the content.
            end = self._num_shown + len(self._text[self._num_shown : end].rstrip())
        shown = self._text[self._num_shown : end]
        self._num_shown = end
        return shown
