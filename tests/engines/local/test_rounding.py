"""Adapters added to 16-bit weights."""

import torch

from bough.engines.local.joined import folded, folds_into, rounded_at_random

STEP = 2.0**-7  # from 1 to the next bfloat16


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_value_becomes_one_of_its_neighbours_as_often_as_keeps_the_mean():
    for sign in (1.0, -1.0):
        rounded = rounded_at_random(torch.full((40_000,), sign * (1 + STEP / 4)), generator())
        assert rounded.dtype == torch.bfloat16
        assert set(rounded.tolist()) == {sign, sign * (1 + STEP)}
        share_up = (rounded.float().abs() > 1).float().mean()
        assert abs(share_up - 0.25) < 0.01  # its standard deviation is 0.002


def test_what_bfloat16_can_hold_keeps_its_bits():
    values = torch.randn(1000, generator=generator()).bfloat16()
    values[:4] = torch.tensor([0.0, -0.0, float("inf"), float("-inf")])
    assert torch.equal(rounded_at_random(values.float(), generator()), values)


def test_what_is_not_a_number_stays_so_with_all_of_its_bits_set():
    """That is the NaN of a GPU's products; one more bit and it is a zero."""
    values = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).repeat(100).view(torch.float32)
    assert rounded_at_random(values, generator()).isnan().all()


def test_an_adapter_too_small_for_rounding_to_the_nearest_is_kept_on_average():
    weight_OI = torch.full((4, 10_000), 1.0, dtype=torch.bfloat16)
    down_RI, up_OR = torch.full((1, 10_000), STEP / 10), torch.ones(4, 1)
    nearest = (weight_OI.float() + up_OR @ down_RI).bfloat16()
    assert torch.equal(nearest, weight_OI)
    kept_O = (folded(weight_OI, down_RI, up_OR, torch.bfloat16, generator()).float() - 1).sum(1)
    assert ((kept_O / (10_000 * STEP / 10) - 1).abs() < 0.15).all()  # four standard deviations are 0.12


def test_in_float32_it_is_the_sum():
    weight_OI, down_RI, up_OR = torch.randn(3, 5), torch.randn(2, 5), torch.randn(3, 2)
    sum_OI = folded(weight_OI, down_RI, up_OR, torch.float32, generator())
    assert torch.allclose(sum_OI, weight_OI + up_OR @ down_RI, atol=1e-6)


def test_weights_in_32_bits_are_first_what_they_are_computed_with():
    """Rounding them at random too would take them further from what training computes."""
    weight_OI = torch.randn(8, 64, generator=generator())
    nothing = torch.zeros(1, 64), torch.zeros(8, 1)
    assert torch.equal(folded(weight_OI, *nothing, torch.bfloat16, generator()), weight_OI.bfloat16())


def test_float16_is_left_alone():
    assert folds_into(torch.bfloat16) and folds_into(torch.float32) and not folds_into(torch.float16)
