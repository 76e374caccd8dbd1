"""One batch of rollouts on disk: its groups, its numbers, and its log-probabilities before the first update.

    00007.json          its numbers, the ledgers so far, and its stamp
    00007.jsonl         its groups, written last: where they are, the numbers are too
    00007.safetensors   with several updates per batch, its log-probabilities before the first

Each file is whole or not there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from bough.disk import remove, replacing, sync, write_json
from bough.online.stamp import Stamp
from bough.trajectories.reader import Reader
from bough.trajectories.writer import Writer
from bough.types import Group


def remove_drafts(folder: Path) -> None:
    """Removes what a killed process has not finished writing. No other process may be writing there."""
    for draft in folder.glob(".[0-9]*"):
        remove(draft)


class BatchFile:
    """Batch `number` in a folder."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / f"{number:05}.jsonl"
        self._numbers, self._logprobs = self.path.with_suffix(".json"), self.path.with_suffix(".safetensors")

    @property
    def stamp(self) -> Stamp | None:
        """What the batch was sampled with; None if it is not there."""
        if not self.path.exists():
            return None
        return Stamp(*self.numbers().get("stamp", ("", "")))

    def numbers(self) -> dict[str, Any]:
        """Nothing if there are none."""
        if not self._numbers.exists():
            return {}
        numbers: dict[str, Any] = json.loads(self._numbers.read_text(encoding="utf-8"))
        return numbers

    def groups(self) -> list[Group]:
        return [record for record in Reader(self.path, format="bough") if isinstance(record, Group)]

    def write(self, groups: Sequence[Group], numbers: dict[str, Any], stamp: Stamp) -> None:
        """Puts the batch on disk, in place of an earlier one of the same number."""
        # The earlier groups go first: they must not stand beside these numbers.
        self.path.unlink(missing_ok=True)
        self._logprobs.unlink(missing_ok=True)
        sync(self.path.parent)
        write_json(self._numbers, numbers | {"stamp": stamp})
        with replacing(self.path) as draft, Writer(draft) as writer:
            for group in groups:
                writer.write(group)

    def logprobs(self, stamp: Stamp, tokens: Tensor) -> Tensor | None:
        """The log-probabilities of these tokens; None if there are none for this stamp."""
        if not self._logprobs.exists():
            return None
        with safe_open(self._logprobs, framework="pt") as known:
            same = known.metadata() == stamp._asdict() and torch.equal(known.get_tensor("tokens"), tokens)
            return known.get_tensor("logprobs") if same else None

    def keep_logprobs(self, stamp: Stamp, tokens: Tensor, logprobs: Tensor) -> None:
        with replacing(self._logprobs) as draft:
            save_file({"tokens": tokens, "logprobs": logprobs}, draft, metadata=stamp._asdict())
