"""The API of the pages: a name and some parameters in, plain values out. Used by the server and by the export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bough.viewer.attempts import tree
from bough.viewer.evaluations import evaluation
from bough.viewer.evolutions import evolution
from bough.viewer.index import Index
from bough.viewer.models import Models
from bough.viewer.queries import records
from bough.viewer.records import image, show
from bough.viewer.runs import overview
from bough.viewer.tokens import tokens
from bough.viewer.training import training

Asked = Mapping[str, str]


class FolderAnswers:
    """All answers about one folder."""

    def __init__(self, index: Index, model: str | None = None) -> None:
        self.index, self.models = index, Models(index, model)
        self.known: dict[str, Callable[[Asked], dict[str, Any]]] = {
            "overview": lambda _: overview(index),
            "records": lambda asked: records(index, asked),
            "record": lambda asked: show(index, asked.get("at", ""), _whole(asked, "attempt")),
            "tree": lambda asked: tree(index, asked.get("at", "")),
            "tokens": self._tokens,
            "training": lambda asked: training(index, asked.get("folder", ""), _whole(asked, "after") or 0),
            "evaluation": lambda asked: evaluation(index, asked.get("folder", "")),
            "evolution": lambda asked: evolution(index, asked.get("folder", "")),
        }

    def image(self, asked: Asked) -> tuple[bytes, str]:
        """A screenshot and its media type."""
        number = _whole(asked, "number")
        return image(self.index, asked.get("at", ""), -1 if number is None else number, _whole(asked, "attempt"))

    def _tokens(self, asked: Asked) -> dict[str, Any]:
        turn = _whole(asked, "turn")
        number = -1 if turn is None else turn
        return tokens(self.index, self.models, asked.get("at", ""), number, _whole(asked, "attempt"))


def _whole(asked: Asked, name: str) -> int | None:
    value = asked.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 16 else None
