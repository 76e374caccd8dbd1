from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bough.config.groups import SamplingConfig
from bough.engines.local.draw import SamplingParams, draw
from bough.engines.local.reader import OneThread, TokenReader
from bough.policy.policy import Policy
from tests.engines.local.test_ragged import read
from tests.policy.families import make


@pytest.fixture(params=[5, 7])
def threads(request: pytest.FixtureRequest):
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


FUNCTIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu, tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "cosine": lambda x: (x * 100).cos(),
    "sine": lambda x: (x * 100).sin(),
}


def changed(function: Callable[[Tensor], Tensor]) -> int:
    """How many numbers come out differently beside hundreds of rows than beside one."""
    rows = torch.randn(400, 352, generator=torch.Generator().manual_seed(0))
    two = torch.cat([function(rows[i : i + 2]) for i in range(0, 400, 2)])
    return sum(int((function(rows[:n]) != two[:n]).sum()) for n in (101, 202, 253, 337, 399, 400))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_has_the_same_bits_beside_any_number_of_rows(name: str, threads: int):
    with OneThread():
        assert changed(FUNCTIONS[name]) == 0
        assert torch.get_num_threads() == threads


def test_a_function_that_fails_gives_the_threads_back(threads: int):
    with OneThread(), pytest.raises(NotImplementedError):
        torch.cos(torch.ones(1, dtype=torch.float8_e4m3fn))
    assert torch.get_num_threads() == threads


@pytest.mark.bit_exact
def test_a_tokens_state_has_the_same_bits_with_several_threads(threads: int):
    reader = TokenReader(Policy(make("gemma3", intermediate_size=352)).eval())
    torch.set_num_threads(1)
    alone = read(reader, [[(0, 200)]])[0]
    torch.set_num_threads(threads)
    for more in range(4):
        assert torch.equal(read(reader, [[(0, 200), (1, 200), (2, 1 + more)]])[0], alone)


def test_a_draw_is_the_same_beside_any_number_of_others(threads: int):
    logits = torch.randn(64, 5001, generator=torch.Generator().manual_seed(0)) * 3
    wishes = SamplingParams.of([(SamplingConfig(), i / 64) for i in range(64)])

    def drawn(rows: slice) -> list[tuple[int, float]]:
        token, logprob = draw(logits[rows], SamplingParams(*(wish[rows] for wish in wishes)), cut=False)
        return list(zip(token.tolist(), logprob.tolist(), strict=True))

    with OneThread():
        alone = [one for i in range(0, 64, 2) for one in drawn(slice(i, i + 2))]
        for number in (3, 17, 64):
            assert drawn(slice(number)) == alone[:number]
