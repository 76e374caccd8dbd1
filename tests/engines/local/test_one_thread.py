import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bough import bit_exact
from bough.config.groups import SamplingConfig
from bough.engines.local.reader import NAME, OneThread, TokenReader
from bough.engines.local.schedule import SamplingParams, draw
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


def test_what_was_compiled_for_training_is_left_alone_and_not_used():
    policy = Policy(make("llama"), compile=True).train()
    layers = list(policy.row_reader.layers)
    before = [layer._compiled_call_impl for layer in layers]
    attention = policy.base.config._attn_implementation
    reader = TokenReader(policy)
    with reader.reading():
        assert [layer._compiled_call_impl for layer in layers] == [None] * len(layers)
        assert not policy.training and policy.base.config._attn_implementation == NAME != attention
    assert None not in before
    assert [layer._compiled_call_impl for layer in layers] == before
    assert policy.training


def test_of_two_readers_at_work_the_last_to_end_switches_onednn_on_again(monkeypatch):
    # An engine of another test may still be at work in this process.
    monkeypatch.setattr(bit_exact, "_num_without_onednn", 0)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    readers = [TokenReader(Policy(make("llama"), attention="sdpa", probe=False).eval()) for _ in range(2)]
    begun, may_end = threading.Event(), threading.Event()

    def read_in_a_thread() -> None:  # as engines do
        with readers[0].reading():
            begun.set()
            may_end.wait()

    assert torch.backends.mkldnn.enabled
    thread = threading.Thread(target=read_in_a_thread)
    thread.start()
    begun.wait()
    with readers[1].reading():
        may_end.set()
        thread.join()
        assert not torch.backends.mkldnn.enabled, "the second still computes bit for bit"
    assert torch.backends.mkldnn.enabled
