import os
import random

import pytest
import torch
from torch import Tensor, nn

from bough.engines.local import reader as packed
from bough.engines.local.reader import PackedLinears, TokenReader, packable, rows_agree
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from tests.engines.local.playing import play, prompt, run, small_engine
from tests.engines.local.test_engine import SAMPLING
from tests.engines.local.test_ragged import made_up_plan, read

REAL = packed._available()


@pytest.fixture(autouse=True)
def _packs(monkeypatch: pytest.MonkeyPatch):
    """Small layers are packed too; where torch cannot pack, copies stand for packed weights."""
    monkeypatch.setattr(packed, "SMALLEST", 1)
    if not REAL:
        monkeypatch.setattr(packed, "_available", lambda: True)
        monkeypatch.setattr(packed, "_pack", lambda weight: weight.detach().clone())
        monkeypatch.setattr(packed, "_product", lambda weight, bias, x: nn.functional.linear(x, weight, bias))
    rows_agree.cache_clear()
    yield
    rows_agree.cache_clear()


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(48, 40)


def test_a_packed_layer_computes_what_it_did_and_is_itself_again_afterwards(layer: nn.Linear):
    x = torch.randn(2, 5, 48)
    own = layer(x)
    linears = PackedLinears([layer])
    with torch.inference_mode(), linears.inside():
        assert "forward" in layer.__dict__
        assert torch.allclose(layer(x), own, atol=1e-5)
    assert "forward" not in layer.__dict__
    layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_only_large_plain_layers_in_float32_are_packed(layer: nn.Linear, monkeypatch: pytest.MonkeyPatch):
    class Own(nn.Linear):
        """A layer that may compute something else."""

    others = [nn.Embedding(4, 4), nn.Linear(48, 40).bfloat16(), Own(48, 40)]
    assert packable([layer, *others, layer]) == [layer]
    monkeypatch.setattr(packed, "SMALLEST", layer.weight.nbytes + 1)
    assert packable([layer]) == []


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_a_product_whose_bits_depend_on_the_number_of_rows_is_found(
    place: int, layer: nn.Linear, monkeypatch: pytest.MonkeyPatch
):
    def product(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        out = nn.functional.linear(x, weight, bias).clone()
        if len(x) == 33:
            out[place, -1] = out[place, -1].nextafter(torch.tensor(torch.inf))
        return out

    monkeypatch.setattr(packed, "_pack", lambda weight: weight.detach().clone())
    monkeypatch.setattr(packed, "_product", product)
    assert packable([layer]) == []


def test_with_some_of_the_cores_layers_stay_as_they_are(layer: nn.Linear, monkeypatch: pytest.MonkeyPatch):
    """The Arm Compute Library would take all of them."""
    monkeypatch.setattr(packed, "_on_arm", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    linears = PackedLinears([layer])
    try:
        for threads, patched in ((1, True), (2, False), (3, True)):
            torch.set_num_threads(threads)
            with linears.inside():
                assert ("forward" in layer.__dict__) == patched
    finally:
        torch.set_num_threads(1)


@pytest.mark.bit_exact
@pytest.mark.skipif(not REAL, reason="this torch cannot pack weights")
@pytest.mark.parametrize(("outputs", "inputs"), [(192, 576), (576, 1536), (64, 64), (100, 200)])
def test_a_row_has_the_same_bits_beside_any_number_of_rows(outputs: int, inputs: int):
    torch.set_num_threads(1)
    weight, rows = torch.randn(outputs, inputs), torch.randn(64, inputs)
    assert rows_agree(outputs, inputs, 1)
    weights = packed._pack(weight)
    together = packed._product(weights, None, rows)
    assert torch.allclose(together, rows @ weight.T, atol=1e-3)
    for number in range(2, 64):
        assert torch.equal(packed._product(weights, None, rows[:number]), together[:number])
        assert torch.equal(packed._product(weights, None, rows[-number:]), together[-number:])


@pytest.mark.bit_exact
def test_a_tokens_state_has_the_same_bits_however_the_tokens_are_cut_and_mixed():
    torch.set_num_threads(1)
    reader = TokenReader(Policy.load("tiny", device="cpu").eval())
    assert reader.packed is not None and len(reader.packed.layers) > 10
    whole = [read(reader, [[(s, 300)]])[s] for s in range(4)]
    for _ in range(2):
        for sequence, states in read(reader, made_up_plan(random.Random("packed"), 300)).items():
            assert torch.equal(states, whole[sequence])


@pytest.mark.bit_exact
@pytest.mark.parametrize("packs", ["all", "the large"])
@pytest.mark.parametrize("lora", [None, Lora(r=4)], ids=["full", "folded adapter"])
@torch.no_grad()
def test_an_engine_follows_the_weights(lora: Lora | None, packs: str, monkeypatch: pytest.MonkeyPatch):
    """Also where an adapter is folded into layers of which some are packed and some are too small for it."""
    policy = Policy.load("tiny", device="cpu", lora=lora).eval()
    if packs == "the large":
        monkeypatch.setattr(packed, "SMALLEST", policy.decoder.layers[0].mlp.gate_proj.weight.nbytes)
    engine = small_engine(policy)
    assert engine.reader.packed is not None
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name or (lora is None and "proj" in name):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    engine.renew("changed")
    start = prompt("start", 20)
    (played,) = run(engine, play(engine, "e", 2, SAMPLING, start))
    fresh = small_engine(policy)
    (expected,) = run(fresh, play(fresh, "e", 2, SAMPLING, start))
    assert [drawn.completion_ids for _, drawn in played] == [drawn.completion_ids for _, drawn in expected]
    assert [drawn.logprobs for _, drawn in played] == [drawn.logprobs for _, drawn in expected]
