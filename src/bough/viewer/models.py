"""The models whose tokens are shown: found without a network, and only their tokenizers are opened.

A name that the user gives is taken at its word. A name that stands in a file was written
by whoever wrote the file: it may mean a built-in model that is in the cache already, or a
folder inside the one that is looked at, and nothing else.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.cache import cache_folder
from bough.errors import BoughError
from bough.types import Trajectory
from bough.viewer.credit import stage_settings, trained_with
from bough.viewer.index import Index

if TYPE_CHECKING:
    from bough.calls.template import ChatTemplate

MAX_MODELS = 8
SCRIPTED = ("expert", "random", "")
# The start of a built-in model's folder in the cache, by the model's name.
IN_CACHE = {"smollm2": "smollm2-", "tiny": "tiny-llama-", "tiny-qwen3": "tiny-qwen3-", "tiny-gemma": "tiny-gemma-"}


class Model:
    """A model's tokenizer. `missing` says why there is none."""

    def __init__(self, name: str | None, folder: Path | str | None, missing: str | None) -> None:
        self.name, self.folder, self.missing = name, folder, missing
        self._tokenizer: Any = None
        self._template: ChatTemplate | None = None
        self._lock = threading.Lock()

    def texts(self, ids: list[int]) -> list[str] | None:
        """Every token's own text. A character that several tokens make up is shown where its last one stands."""
        tokenizer = self._decoder()
        if tokenizer is None or any(token >= tokenizer.get_vocab_size() for token in ids):
            return None  # another model's
        texts, pending = list[str](), list[int]()
        for token in ids:
            pending.append(token)
            text = tokenizer.decode(pending, skip_special_tokens=False)
            if text.endswith("�") and len(pending) < 4:
                texts.append("")
                continue
            texts.append(text)
            pending = []
        return texts

    def template(self) -> ChatTemplate | None:
        """The chat template, with transformers behind it: slow to load, and only needed where tokens are made."""
        with self._lock:
            if self._template is None and self.folder is not None:
                from bough.calls.template import load_template

                try:
                    self._template = load_template(str(self.folder))
                except (BoughError, OSError, ValueError) as error:
                    self.missing = str(error).partition("\n")[0]
            return self._template

    def _decoder(self) -> Any:
        with self._lock:
            if self._tokenizer is None and self.missing is None and self.folder is not None:
                from tokenizers import Tokenizer

                try:
                    self._tokenizer = Tokenizer.from_file(str(Path(self.folder) / "tokenizer.json"))
                except Exception as error:  # the library raises plain Exceptions
                    self.missing = f"the tokenizer of {self.name} cannot be read ({error})"
            return self._tokenizer


class Models:
    """The models of a folder's records."""

    def __init__(self, index: Index, given: str | None) -> None:
        self.index, self.given = index, given
        self._known: OrderedDict[str, Model] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, file: str, record: Trajectory) -> Model:
        """The model whose tokens a record has: the user's word, the collection's settings, or those of the training."""
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
        for name in (collected, record.info.get("agent"), (trained_with(self.index, file)[0] or {}).get("model")):
            if isinstance(name, str) and name not in SCRIPTED:
                return name
        return None

    def _find(self, name: str) -> Model:
        if name == self.given:
            from bough.models.resolve import resolve

            return Model(name, resolve(name), None)
        folder = _cached(name) or self._inside(name)
        missing = None if folder else f"the model {name} is not at hand; --model names one"
        return Model(name, folder, missing)

    def _inside(self, name: str) -> Path | None:
        """A model folder inside the folder that is looked at, wherever that was when the run was made."""
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
