import pytest
import torch

from bough.engines.local.adapters import Slots, Stack
from bough.policy.adapters import LoraPair

SIZES, WIDTH = [5, 3], 6


def pair(rank: int, size: int, seed: int) -> LoraPair:
    generator = torch.Generator().manual_seed(seed)
    return LoraPair(torch.randn(rank, WIDTH, generator=generator), torch.randn(size, rank, generator=generator))


def added(stack: Stack, slots: Slots, x: torch.Tensor, names: list[str]) -> torch.Tensor:
    low, up = stack.factors(x, slots.others(torch.tensor([slots[name] for name in names])))
    return low @ up


def expected(x: torch.Tensor, pairs: list[LoraPair | None]) -> torch.Tensor:
    parts = [
        torch.zeros(len(x), size) if one is None else x @ one.down_RI.T @ one.up_OR.T
        for size, one in zip(SIZES, pairs, strict=True)
    ]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_each_row_is_computed_with_its_own_adapter_while_adapters_come_go_and_grow(first):
    slots, stack = Slots(), Stack(SIZES, WIDTH, first=first, dtype=torch.float32, device=torch.device("cpu"))
    own = [pair(2, 5, 99), None] if first == 0 else [None, None]
    if first == 0:
        stack.put(0, slots.capacity, own)
    known = {"": own}
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1))
    for number, rank in enumerate([3, 9, 1, 20, 2, 4]):
        known[f"{number}"] = [pair(rank, 5, number), pair(2, 3, 50 + number) if number % 2 else None]
        stack.put(slots.take(f"{number}"), slots.capacity, known[f"{number}"])
        if number == 3:  # its slot is taken by the next
            stack.put(slots["1"], slots.capacity, [None, None])
            slots.free("1")
            del known["1"]
        names = [list(known)[i % len(known)] for i in range(len(x))]
        sums = torch.stack([expected(x[i : i + 1], known[name])[0] for i, name in enumerate(names)])
        torch.testing.assert_close(added(stack, slots, x, names), sums, rtol=1e-4, atol=1e-4)


def test_only_growth_and_the_first_and_last_adapter_need_new_graphs():
    slots, stack = Slots(), Stack(SIZES, WIDTH, first=1, dtype=torch.float32, device=torch.device("cpu"))
    versions = []
    for name in "abcde":
        grown = stack.put(slots.take(name), slots.capacity, [pair(2, 5, 0), None])
        versions.append((slots.version, grown))
    assert versions == [(1, True), (1, False), (1, False), (1, False), (1, True)]
    assert not stack.put(slots["b"], slots.capacity, [pair(8, 5, 0), None])
    assert stack.put(slots["b"], slots.capacity, [pair(8, 5, 0), pair(1, 3, 0)])
    for name in "abcde":
        slots.free(name)
    assert slots.version == 2 and not slots
