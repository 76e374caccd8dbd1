import pytest
import torch
from torch import Tensor

from bough.policy.adapters import HASHED_WHOLE, weights_digest


def of(weight: Tensor, name: str = "a") -> str:
    return weights_digest([(name, weight)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float64])
@pytest.mark.parametrize("size", [1, 1023, 5000, HASHED_WHOLE + 5000])
def test_one_bit_of_one_weight_is_another_digest(dtype: torch.dtype, size: int):
    weight = torch.arange(size).to(dtype)
    for place in {0, size // 2, size - 1}:
        other = weight.clone()
        other.view(torch.uint8)[place * weight.element_size()] ^= 1
        assert of(other) != of(weight)
    assert of(weight.clone()) == of(weight)


def test_the_same_numbers_in_another_shape_place_or_type_are_other_weights():
    weight = torch.arange(6.0)
    digests = {of(weight), of(weight.view(2, 3)), of(weight, "b"), of(weight.double()), of(torch.arange(7.0)[:6] + 1)}
    assert len(digests) == 5
    blocks = torch.arange(2.0 * HASHED_WHOLE)
    assert of(blocks) != of(blocks.roll(1024))


def test_a_view_has_the_digest_of_its_own_weights():
    weight = torch.arange(12.0).view(3, 4)
    assert of(weight.T) == of(weight.T.contiguous()) != of(weight)
