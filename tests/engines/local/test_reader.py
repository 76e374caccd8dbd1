import threading

import torch

from bough import bit_exact
from bough.engines.local.reader import NAME, TokenReader
from bough.policy.policy import Policy
from tests.policy.families import make


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
