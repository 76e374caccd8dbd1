import threading

import pytest
import torch
from torch._dynamo.utils import counters
from torch._subclasses import FakeTensorMode

from bough.bit_exact import _OneDNN
from bough.config.groups import SamplingConfig
from bough.engines.local.reader import NAME, TokenReader
from bough.policy.policy import Policy
from tests.engines.local.playing import play, prompt, run, small_engine
from tests.policy.families import make

SAMPLING = SamplingConfig(max_new_tokens=6)


@pytest.fixture
def traced(monkeypatch):
    """Layers are traced as for a GPU, but what comes out is run as it is: no compiler is needed."""
    # A CUDA build of torch 2.11 without a device keeps, for the whole process, a guard that belongs to the first thread
    # that traces, and crashes once that thread has ended. The engine's thread ends; this one does not.
    with FakeTensorMode():
        pass
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled(function, backend="eager", **options))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_one_compiled_form_serves_all_layers_prompts_and_draws_alike(traced):
    config = make("qwen3").config
    config.num_hidden_layers, config.layer_types = 5, ["full_attention"] * 5
    torch.manual_seed(0)
    from transformers import AutoModelForCausalLM

    policy = Policy(AutoModelForCausalLM.from_config(config)).eval()
    drawn = []
    for compiled in (False, True):
        engine = small_engine(policy, layout="rows", max_length=250, compile=compiled)
        # A length at which no two sizes are the same: torch takes those for one, and compiles again where they differ.
        played = run(engine, *(play(engine, f"{i}", 2, SAMPLING, prompt("system", 20)) for i in range(3)))
        drawn.append([answer.completion_ids for calls in played for _, answer in calls])
        assert bool(counters["stats"]["unique_graphs"]) == compiled
    assert drawn[0] == drawn[1]
    # At most one each for the first two layers and for the rest; never one for each layer or number of tokens.
    assert counters["stats"]["unique_graphs"] <= 3
    assert not counters["graph_break"]


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


def test_layers_that_see_differently_far_are_not_compiled_and_that_is_said(traced, caplog):
    reader = TokenReader(Policy(make("gemma3")).eval(), compile=True)
    assert "not compiled" in caplog.text
    with reader.reading():
        assert all(layer._compiled_call_impl is None for layer in reader.policy.row_reader.layers)


def test_of_two_readers_at_work_the_last_to_end_switches_onednn_on_again(monkeypatch):
    # An engine of another test may still be at work in this process.
    monkeypatch.setattr(_OneDNN, "num_without", 0)
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
