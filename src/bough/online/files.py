"""One batch of rollouts on disk: its groups, its numbers, and its log-probabilities before the first update.

    00007.json          its numbers, the ledgers so far, and its stamp
    00007.jsonl         its groups, written last: where they are, the numbers are too
    00007.safetensors   with several updates per batch, its log-probabilities before the first

Each file is whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bough.config.base import leaves
from bough.config.groups import ClusterConfig
from bough.config.training import CheckpointsConfig, MachineConfig, OnlineConfig, OptimizerConfig, TrackingConfig
from bough.data.reader import Reader
from bough.data.writer import Writer
from bough.errors import InputError
from bough.files import open_file, read_json, remove, replacing, sync, text_digest, write_json
from bough.policy.adapters import weights_digest
from bough.types import Group, Trajectory

log = logging.getLogger(__name__)


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
        try:
            numbers = read_json(self._numbers)
        except ValueError as error:
            raise InputError(f"{self._numbers} is damaged: {error}") from None
        if not isinstance(numbers, dict):
            raise InputError(f"{self._numbers} is damaged: it does not hold a JSON object")
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
        if not self._logprobs.is_file():
            return None
        with safe_open(self._logprobs, framework="pt") as known:
            same = known.metadata() == stamp._asdict() and torch.equal(known.get_tensor("tokens"), tokens)
            return known.get_tensor("logprobs") if same else None

    def keep_logprobs(self, stamp: Stamp, tokens: Tensor, logprobs: Tensor) -> None:
        with replacing(self._logprobs) as draft:
            save_file({"tokens": tokens, "logprobs": logprobs}, draft, metadata=stamp._asdict())


# Finished episodes on disk until their batch is: one file per task, one line per episode, written as it ends.
#     episodes/000012.jsonl    finished attempts at task number 12
# A run that was killed takes them up again. Each line says which settings and which weights sampled the episode; one
# that was sampled by others is played again. A task's file goes when its group is in a batch.

SAMPLED_BY = "sampled_by"  # in a record's info, on disk only


class EpisodeFiles:
    """The folder. `weights` has the digest of the weights of every version so far, a version for each batch."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder, self.settings = folder, settings
        self.weights: dict[int, str] = {}

    def add(self, number: int, episode: Trajectory, versions: Iterable[int]) -> None:
        """Writes a finished episode to the disk. RowError if it cannot be written as JSON."""
        weights = {str(version): self.weights[version] for version in versions}
        sampled_by = {"settings": self.settings, "weights": weights}
        with Writer(self._path(number)) as writer:
            writer.write(episode.model_copy(update={"info": {**episode.info, SAMPLED_BY: sampled_by}}))

    def read(self, number: int, since: int = 0) -> dict[str, Trajectory]:
        """The finished attempts at a task, by id, sampled by version `since` or later ones.

        If any were sampled differently, the file is removed.
        """
        path, found = self._path(number), dict[str, Trajectory]()
        if not path.exists():
            return found
        records = [one for one in Reader(path, format="bough", on_error="skip") if isinstance(one, Trajectory)]
        for record in records:
            info = dict(record.info)
            if not self._is_of_this_run(info.pop(SAMPLED_BY, None), since):
                log.warning("%s was sampled with different settings or weights: its episodes are played again.", path)
                remove(path)
                return {}
            found[record.id] = record.model_copy(update={"info": info})
        return found

    def remove(self, number: int) -> None:
        """Removes the attempts at a task."""
        self._path(number).unlink(missing_ok=True)

    def keep_only(self, unfinished: Iterable[int], next_number: int) -> None:
        """Removes what batches have used: the files of tasks before `next_number` that are not unfinished."""
        kept = {self._path(number) for number in unfinished}
        for path in self.folder.glob("*.jsonl"):
            if path not in kept and path.stem.isdecimal() and int(path.stem) < next_number:
                remove(path)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.jsonl"

    def _is_of_this_run(self, sampled_by: object, since: int) -> bool:
        if not isinstance(sampled_by, dict) or sampled_by.get("settings") != self.settings:
            return False
        weights = sampled_by.get("weights")
        if not isinstance(weights, dict) or not weights:
            return False
        known = all(self.weights.get(int(version)) == digest for version, digest in weights.items())
        return known and min(map(int, weights)) >= since


# What a batch of rollouts depends on: the settings it was played with and the weights that sampled it.
# A run that resumes learns from a batch on file only if both are still the same.

# Settings that decide how a batch is trained on, but not what is in it.
FREE = {
    *("output_dir", "resume", "overwrite", *leaves(CheckpointsConfig), *leaves(TrackingConfig)),
    *leaves(OptimizerConfig).keys() - {"batch_size"},
    *leaves(MachineConfig).keys() - {"bf16"},
    *("adapter", "merge_lora", "lora_dropout"),  # the weights are compared themselves
    *("updates", "concurrency", "retries", "watch", *leaves(ClusterConfig), "learners"),
    *("clip_low", "clip_high", "dual_clip", "kl_coef", "averaging", "constant_length"),
    *("teacher", "server_model", "key_variable", "beta", "base_url", "engine_options"),
}


class Stamp(NamedTuple):
    """Digests of settings and weights."""

    settings: str
    weights: str

    @property
    def number(self) -> int:
        """Both as one number, for a checkpoint to keep."""
        return int(_hash("/".join(self).encode())[:12], 16)


class Stamper:
    """Stamps for the batches of one run. Weights that are not trained are read once."""

    def __init__(self, config: OnlineConfig, model: nn.Module) -> None:
        self._model = model
        self.settings = settings_digest(config)
        self._frozen = weights_digest((n, w) for n, w in model.named_parameters() if not w.requires_grad)

    def stamp(self) -> Stamp:
        """The stamp of a batch that is sampled now."""
        trained = weights_digest((n, w) for n, w in self._model.named_parameters() if w.requires_grad)
        return Stamp(self.settings, _hash((self._frozen + trained).encode()))


def settings_digest(config: OnlineConfig) -> str:
    """A digest of the settings that matter for a batch; of a file that they name, what is in it."""
    values = {name: value for name, value in config.flat_dump().items() if name not in FREE}
    settings = leaves(type(config))
    files = {name: path for name in values if isinstance(path := settings[name].of(config), Path) and path.is_file()}
    values |= {name: _hash_file(path) for name, path in files.items()}
    return _hash(json.dumps(values, sort_keys=True).encode())


def _hash(content: bytes) -> str:
    return text_digest(content, size=16)


def _hash_file(path: Path) -> str:
    """The same of a file's content, which may be large."""
    with open_file(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
