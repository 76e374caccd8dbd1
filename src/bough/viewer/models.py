"""The models whose tokens are shown: found without a network, and only their tokenizers are opened.

A name from the user may be any model. A name from a file is not trusted: it may only be
a built-in model that is already in the cache, or a folder inside the one that is shown.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from bough.cache import cache_folder
from bough.types import Call, Trajectory
from bough.viewer.credit import stage_settings, trained_with
from bough.viewer.index import Index
from bough.viewer.renderer import Renderer, RenderError

MAX_MODELS = 8
SCRIPTED = ("expert", "random", "")
# The start of a built-in model's folder in the cache, by the model's name.
IN_CACHE = {"smollm2": "smollm2-", "tiny": "tiny-llama-", "tiny-qwen3": "tiny-qwen3-", "tiny-gemma": "tiny-gemma-"}


class Model:
    """A model's tokenizer and chat template. `missing` and `no_template` say why there is none."""

    def __init__(
        self, name: str | None, folder: Path | str | None, missing: str | None, renderer: Renderer | None = None
    ) -> None:
        self.name, self.folder, self.missing = name, folder, missing
        self._renderer = renderer or Renderer()
        self.no_template: str | None = None

    def texts(self, ids: list[int]) -> list[str] | None:
        """Every token's own text; None if there is no tokenizer, or it is another model's."""
        if self.missing is not None or self.folder is None:
            return None
        try:
            found: list[str] | None = self._renderer.ask({"ask": "texts", "folder": str(self.folder), "ids": ids})[
                "texts"
            ]
        except RenderError as error:
            self.missing = f"the tokenizer of {self.name} cannot be read ({error})"
            return None
        return found

    def call(self, record: Trajectory, turn: int) -> Call | None:
        """The call that training would make of a turn, with the model's chat template."""
        if self.folder is None or self.no_template is not None:
            return None
        shown = record.model_dump(mode="json", exclude={"turns": {"__all__": {"call"}}})
        try:
            found = self._renderer.ask({"ask": "call", "folder": str(self.folder), "record": shown, "turn": turn})[
                "call"
            ]
        except RenderError as error:
            # Asked once: a template without an end would take all of its time for every page.
            self.no_template = f"the chat template of {self.name} cannot be used ({error})"
            return None
        return None if found is None else Call.model_validate(found)


class Models:
    """The models of a folder's records."""

    def __init__(self, index: Index, given: str | None) -> None:
        self.index, self.given, self.renderer = index, given, Renderer()
        self._known: OrderedDict[str, Model] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, file: str, record: Trajectory) -> Model:
        """The model whose tokens a record has: from the user, the collection's settings, or the training run's."""
        name = self.given or self._named(file, record)
        if name is None:
            return Model(None, None, "no model is named; start the viewer with --model NAME")
        with self._lock:
            if name not in self._known:
                self._known[name] = self._find(name)
                while len(self._known) > MAX_MODELS:
                    self._known.popitem(last=False)
            return self._known[name]

    def _named(self, file: str, record: Trajectory) -> str | None:
        collected = stage_settings(self.index, str(Path(file).parent)).get("model")
        played = str(record.info.get("agent", "")).partition("+")[0]  # the model without its adapter
        for name in (collected, played, (trained_with(self.index, file)[0] or {}).get("model")):
            if isinstance(name, str) and name not in SCRIPTED:
                return name
        return None

    def _find(self, name: str) -> Model:
        if name == self.given:
            from bough.models.resolve import resolve

            return Model(name, resolve(name), None, self.renderer)
        folder = _cached(name) or self._inside(name)
        missing = None if folder else f"the model {name} is not available here; name one with --model"
        return Model(name, folder, missing, self.renderer)

    def _inside(self, name: str) -> Path | None:
        """A model folder inside the folder that is shown, even if that was somewhere else when the run was made."""
        root, parts = self.index.root.path, Path(name).parts
        for start in range(len(parts)):
            file = self.index.root.inside(root.joinpath(*parts[start:]) / "tokenizer.json")
            if file is not None:
                return file.parent
        return None


def _cached(name: str) -> Path | None:
    start = IN_CACHE.get(name)
    found = sorted((cache_folder() / "models").glob(f"{start}*/tokenizer.json")) if start else []
    return max(found, key=lambda file: file.stat().st_mtime).parent if found else None
