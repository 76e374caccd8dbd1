"""How the layers are computed; what CUDA graphs give is in test_recorded.py, what training does in test_loop.py."""

import copy

import pytest
import torch
from torch._dynamo.utils import counters

from bough.errors import InputError
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.policy.recorded import RecordedReads
from bough.types import Call
from tests.policy.families import make


@torch.no_grad()
def test_a_compiled_layer_is_one_graph_with_its_attention_for_layers_and_rows_of_all_lengths(monkeypatch):
    torch.set_num_threads(1)
    compiled = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: compiled(self, backend="eager", **how))
    torch._dynamo.reset()
    counters.clear()
    model = make("llama")
    plain, policy = Policy(copy.deepcopy(model)), Policy(model, attention="flex", compile=True)
    for length in (3, 100, 230):
        calls = [Call(prompt_ids=[1, 2, 3] * length, completion_ids=[4, 5])]
        torch.testing.assert_close(policy.logprobs(calls)[0], plain.logprobs(calls)[0])
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


def test_what_is_recorded_is_given_up_where_activations_are_computed_again():
    policy = Policy.load("tiny", device="cpu", lora=Lora(r=4))
    policy.row_reader.recorded = RecordedReads(lambda *_: torch.zeros(1), [])
    assert policy.row_reader.can_recompute
    policy.row_reader.recompute()
    assert policy.row_reader.recorded is None and not policy.row_reader.can_recompute


def test_a_model_that_cannot_be_recorded_is_refused_with_the_reasons():
    policy = Policy.load("tiny", device="cpu", lora=Lora(r=2, dropout=0.1), gradient_checkpointing=True)
    with pytest.raises(InputError, match="cannot record this model: it does not use FlexAttention") as refused:
        policy.row_reader.record()
    assert "it recomputes activations (--gradient-checkpointing), it has dropout (--lora-dropout" in str(refused.value)
