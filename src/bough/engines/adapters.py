"""The LoRA adapters that a running engine has loaded, and which of them its answers still use.

Each load gets a new name, even of the same folder: vLLM's prefix cache tells adapters apart by
name, and a name that came twice would bring back what was computed with the old weights.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bough.disk import remove
from bough.errors import InputError


@dataclass
class Adapter:
    """An adapter in an engine. `policy` is its name in the records, `in_use` how many answers are being sampled."""

    name: str
    number: int
    folder: Path
    policy: str
    temporary: bool
    in_use: int = 0


class LoadedAdapters:
    """The newest adapter samples new answers; older ones stay as long as an answer that they began is in flight."""

    def __init__(self) -> None:
        self.newest: Adapter | None = None
        self._old: list[Adapter] = []
        self._numbers = itertools.count(1)

    def new(self, folder: str | Path, policy: str | None, *, temporary: bool) -> Adapter:
        """An adapter with a new name, to be loaded. With `temporary`, its folder is deleted when it is dropped."""
        name = f"{Path(policy or folder).name}-{uuid.uuid4().hex[:8]}"
        return Adapter(name, next(self._numbers), Path(folder).absolute(), policy or str(folder), temporary)

    def loaded(self, adapter: Adapter) -> None:
        """The engine has loaded it: it samples all new answers."""
        if self.newest is not None:
            self._old.append(self.newest)
        self.newest = adapter

    def take_unused(self) -> list[Adapter]:
        """The old adapters that no answer uses any more; they are not listed again."""
        unused = [one for one in self._old if not one.in_use]
        self._old = [one for one in self._old if one.in_use]
        return unused

    def take_all(self) -> list[Adapter]:
        """All adapters, for an engine that closes."""
        everything = [*self._old, *([self.newest] if self.newest else [])]
        self._old, self.newest = [], None
        return everything

    @contextmanager
    def using(self) -> Iterator[Adapter | None]:
        """The newest adapter, kept until the answer has ended."""
        adapter = self.newest
        if adapter is None:
            yield None
            return
        adapter.in_use += 1
        try:
            yield adapter
        finally:
            adapter.in_use -= 1


def delete_folders(adapters: list[Adapter]) -> None:
    """Deletes the folders of dropped adapters that were written for the engine only."""
    for adapter in adapters:
        if adapter.temporary and adapter.folder.exists():
            remove(adapter.folder)


def adapter_rank(folder: Path) -> int:
    """The rank of the adapter in `folder`."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        return max([int(settings["r"]), *map(int, settings.get("rank_pattern", {}).values())])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} contains no LoRA adapter: adapter_config.json: {error}") from None
