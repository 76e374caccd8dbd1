from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from bough.engines.base import EngineError
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.rollouts.ray_weights import Publisher, Subscriber, copy_weights, pack, trained_weights, unpack


class Shelf:
    """An object store in this process. Like Ray's, it keeps copies."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Any) -> int:
        self.values.append(deepcopy(value))
        return len(self.values) - 1

    def get(self, stored: int) -> Any:
        return self.values[stored]


def weights(value: float) -> dict[str, Tensor]:
    return {"b": torch.full((2, 3), value), "a": torch.tensor([value, 1.0], dtype=torch.bfloat16)}


def pair(keep: int) -> tuple[Publisher, Subscriber, Shelf]:
    shelf = Shelf()
    return Publisher(keep, shelf), Subscriber(shelf), shelf


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
def test_tensors_come_back_bit_for_bit_and_are_copies(dtype: torch.dtype):
    first = {"whole": torch.arange(6).to(dtype).view(2, 3), "turned": torch.arange(6).to(dtype).view(2, 3).T}
    packed = pack(first)
    for one in packed.values():
        one.bits.flags.writeable = False  # as Ray's are
    found = unpack(packed)
    assert equal(found, first)
    found["whole"].add_(1)
    assert equal(unpack(packed), first)


def test_a_subscriber_gets_what_was_published_and_ignores_old_news():
    publisher, subscriber, _ = pair(keep=2)
    version = publisher.publish("step-0", weights(1.5))
    subscriber.hear(publisher.offers)
    assert subscriber.newest == version == publisher.newest and version.name == "step-0"
    assert equal(subscriber.fetch(version), weights(1.5))
    publisher, subscriber, _ = pair(keep=1)
    publisher.publish("step-0", weights(0))
    old = publisher.offers
    publisher.publish("step-1", weights(1))
    subscriber.hear(publisher.offers)
    subscriber.hear(old)
    assert subscriber.newest == publisher.newest


def test_only_the_newest_versions_are_kept():
    publisher, subscriber, _ = pair(keep=3)
    versions = [publisher.publish(f"step-{n}", weights(n)) for n in range(5)]
    assert [offer.version for offer in publisher.offers] == versions[2:]
    subscriber.hear(publisher.offers)
    with pytest.raises(EngineError, match="step-1 are no longer kept"):
        subscriber.fetch(versions[1])
    assert equal(subscriber.fetch(versions[2]), weights(2))


def test_an_episode_gets_its_version_or_the_newest_if_that_has_gone():
    publisher, subscriber, _ = pair(keep=2)
    versions = [publisher.publish(f"step-{n}", weights(n)) for n in range(3)]
    assert subscriber.choose(versions[1]) is None, "nothing was heard yet"
    subscriber.hear(publisher.offers)
    assert subscriber.choose(versions[1]) == versions[1]
    assert subscriber.choose(versions[0]) == versions[2]
    later = publisher.publish("step-3", weights(3))
    assert subscriber.choose(later) is None


def test_damaged_weights_are_refused():
    publisher, subscriber, shelf = pair(keep=1)
    version = publisher.publish("step-0", weights(1))
    subscriber.hear(publisher.offers)
    shelf.values[0]["b"].bits[3] ^= 1
    with pytest.raises(EngineError, match="step-0 arrived damaged"):
        subscriber.fetch(version)


def test_training_changes_the_actor_alone_and_a_policy_takes_it_over():
    first = Policy.load("tiny", lora=Lora(r=2))
    with torch.no_grad():
        for weight in trained_weights(first).values():
            weight.normal_()
    found = trained_weights(first)
    assert found and all(".actor." in name for name in found)
    second = Policy.load("tiny", lora=Lora(r=2))
    copy_weights(found, second)
    assert equal(trained_weights(second), found)
    with pytest.raises(EngineError, match="another model"):
        copy_weights(found, Policy.load("tiny", lora=Lora(r=4)))


def test_tied_weights_travel_once():
    policy = Policy.load("tiny")
    sent = trained_weights(policy)
    assert sum(weight.numel() for weight in sent.values()) == sum(weight.numel() for weight in policy.parameters())
