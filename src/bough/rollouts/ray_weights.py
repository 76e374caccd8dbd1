"""Versions of the weights in training, through Ray's object store.

The trainer publishes a version after each batch that it has trained on. Workers hear which
versions there are, fetch those that their episodes need and check their digests. Only the
newest few are kept; an episode that is handed out again after its version was dropped is played
with the newest one, as any other episode that is handed out then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bough.engines.base import EngineError
from bough.policy.adapters import INTEGERS, weights_digest
from bough.policy.policy import Policy
from bough.policy.processes import gather
from bough.rollouts.ray import import_ray

# How long a fetch may take before the worker gives up, in seconds: 10 GB at 50 MB/s.
FETCH_TIMEOUT_S = 200.0


@dataclass(frozen=True)
class Version:
    """Which weights: the number grows with each version, `name` is how records name them."""

    number: int
    name: str
    digest: str


@dataclass(frozen=True)
class Offer:
    """A version, and where its weights are."""

    version: Version
    stored: Any


class RayStore:
    """Ray's object store. An object is freed when no process refers to it any more. Errors of Ray are EngineErrors."""

    def put(self, value: Any) -> Any:
        try:
            return import_ray().put(value)
        except import_ray().exceptions.RayError as error:
            raise self._failed("stored", error) from error

    def get(self, stored: Any) -> Any:
        try:
            return import_ray().get(stored, timeout=FETCH_TIMEOUT_S)
        except import_ray().exceptions.RayError as error:
            raise self._failed("fetched", error) from error

    def _failed(self, done: str, error: Exception) -> EngineError:
        first = str(error).strip().partition("\n")[0]
        return EngineError(f"the weights cannot be {done}: {type(error).__name__}: {first}")


class PackedTensor(NamedTuple):
    """A tensor as an array of its bits: numpy has no bfloat16, and Ray shares arrays between processes uncopied."""

    bits: np.ndarray[Any, Any]
    shape: tuple[int, ...]
    dtype: torch.dtype


class Publisher:
    """The trainer's side: the newest `keep` versions."""

    def __init__(self, keep: int, store: RayStore | None = None) -> None:
        self._keep, self._store = keep, RayStore() if store is None else store
        self._offers: list[Offer] = []
        self._number = 0

    @property
    def offers(self) -> tuple[Offer, ...]:
        """The versions that are kept, the oldest first."""
        return tuple(self._offers)

    @property
    def newest(self) -> Version:
        return self._offers[-1].version

    def publish(self, name: str, weights: Mapping[str, Tensor]) -> Version:
        """Stores the weights as the newest version and forgets the oldest that is too many."""
        on_cpu = {key: weight.detach().cpu() for key, weight in weights.items()}
        version = Version(self._number, name, weights_digest(sorted(on_cpu.items())))
        # Before the new one is stored: there is room for `keep` of them, not for one more.
        del self._offers[: max(0, len(self._offers) - self._keep + 1)]
        self._offers.append(Offer(version, self._store.put(pack(on_cpu))))
        self._number += 1
        return version


class Subscriber:
    """A worker's side: what it has heard of."""

    def __init__(self, store: RayStore | None = None) -> None:
        self._store = RayStore() if store is None else store
        self._offers: dict[int, Offer] = {}

    def hear(self, offers: Iterable[Offer]) -> None:
        """These are the versions now. What was heard before and arrives late changes nothing."""
        heard = {offer.version.number: offer for offer in offers}
        if not self._offers or max(heard) >= max(self._offers):
            self._offers = heard

    @property
    def newest(self) -> Version | None:
        return self._offers[max(self._offers)].version if self._offers else None

    def choose(self, wanted: Version) -> Version | None:
        """The wanted version; the newest if that was dropped; None if it is not known yet."""
        newest = self.newest
        if newest is None or wanted.number > newest.number:
            return None
        return wanted if wanted.number in self._offers else newest

    def fetch(self, version: Version) -> dict[str, Tensor]:
        """The weights of a version that was heard of. Raises EngineError if they cannot be had or are damaged."""
        if (offer := self._offers.get(version.number)) is None:
            raise EngineError(f"the weights {version.name} are no longer kept")
        weights = unpack(self._store.get(offer.stored))
        if (found := weights_digest(sorted(weights.items()))) != version.digest:
            raise EngineError(f"the weights {version.name} arrived damaged: digest {found}, not {version.digest}")
        return weights


def trained_weights(policy: Policy) -> dict[str, Tensor]:
    """What training changes, by the names in `policy.model`: the actor, or all weights. Tied weights are there once.

    Sharded, every process must ask; the first gets them whole.
    """
    return gather({name: weight for name, weight in policy.model.named_parameters() if weight.requires_grad})


def copy_weights(weights: Mapping[str, Tensor], policy: Policy) -> None:
    """Overwrites weights of a policy. EngineError if it has no such weights: it is another model."""
    own = dict(policy.model.named_parameters())
    if unknown := [name for name, weight in weights.items() if name not in own or own[name].shape != weight.shape]:
        raise EngineError(f"the weights in training are of another model than the worker's: {unknown[0]}")
    with torch.no_grad():
        for name, weight in weights.items():
            own[name].copy_(weight)


def pack(weights: Mapping[str, Tensor]) -> dict[str, PackedTensor]:
    """Tensors on the CPU as arrays."""
    packed = {}
    for name, weight in weights.items():
        bits = weight.contiguous().view(-1).view(INTEGERS[weight.element_size()]).numpy()
        packed[name] = PackedTensor(bits, tuple(weight.shape), weight.dtype)
    return packed


def unpack(packed: Mapping[str, PackedTensor]) -> dict[str, Tensor]:
    """Copies: the arrays may be shared with other processes, and must not be written to."""
    return {name: torch.from_numpy(one.bits.copy()).view(one.dtype).view(one.shape) for name, one in packed.items()}
