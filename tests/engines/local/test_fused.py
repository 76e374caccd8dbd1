"""The decoder in few kernels against what training computes.

Without a GPU the kernels are those of `plain_kernels.py`: what is tested is everything around them.
"""

import operator
import sys

import pytest
import torch
import transformers

from bough.config.groups import SamplingConfig
from bough.engines.local import paths
from bough.engines.local.engine import LocalEngine
from bough.engines.local.pages import PAGE, PagesStore, Tokens, block_size
from bough.engines.local.schedule import SamplingParams, draw, uniform
from bough.policy.adapters import Lora, add_actor
from bough.policy.policy import Policy
from tests.engines.local import plain_kernels
from tests.engines.local.playing import play, prompt, run
from tests.engines.local.test_engine import answers, scored
from tests.policy.families import SHAPE, make

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPISODES = 12 if DEVICE == "cuda" else 3
on_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
SAMPLING = SamplingConfig(max_new_tokens=8)
MORE = {"qwen2": "Qwen2ForCausalLM", "olmo2": "Olmo2ForCausalLM"}
START = prompt("system", 170)  # the second answer begins at token 190 and ends in another page


@pytest.fixture(autouse=True)
def _kernels_of_this_machine(monkeypatch):
    if DEVICE == "cuda":
        return
    monkeypatch.setitem(sys.modules, "bough.engines.local.kernels", plain_kernels)
    monkeypatch.delitem(sys.modules, "bough.engines.local.fused", raising=False)
    monkeypatch.setattr(paths, "_fits_fused", lambda _: True)


def small_policy(family: str, *, lora: bool = False, dtype: torch.dtype = torch.float32) -> Policy:
    if family in MORE:
        torch.manual_seed(0)
        model = getattr(transformers, MORE[family])(
            getattr(transformers, MORE[family]).config_class(**SHAPE | {"max_position_embeddings": 512})
        )
    else:
        model = make(family, max_position_embeddings=512)
    model = model.to(DEVICE, dtype)
    if lora:
        model = add_actor(model, Lora(r=4))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
    return Policy(model.to(DEVICE), attention="sdpa").eval()


def engine_of(policy: Policy, **options) -> LocalEngine:
    return LocalEngine.of(policy, **{"max_tokens": 20_000, "max_running": 24, "graphs": DEVICE == "cuda"} | options)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2", "mistral", "granite"])
def test_log_probabilities_are_those_that_training_computes(family, lora):
    policy = small_policy(family, lora=lora)
    engine = engine_of(policy, layout="pages")
    assert any(joined.folded for joined in engine.path.decoder.joined()) == lora
    played = run(engine, *(play(engine, f"{i}", 2, SAMPLING, START) for i in range(EPISODES)))
    assert engine.scheduler.num_shared > 0
    assert scored(policy, [call for calls in played for call in calls]) < 1e-4


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gpt2", "olmo2", "cohere", "granite_swa"])
def test_models_of_another_form_are_left_to_their_own_code(family):
    policy = small_policy(family)
    engine = engine_of(policy, max_length=250, max_tokens=8000)
    assert not isinstance(engine.scheduler.store, PagesStore)
    played = run(engine, *(play(engine, f"{i}", 2, SAMPLING, prompt("system", 60)) for i in range(3)))
    assert scored(policy, [call for calls in played for call in calls]) < 1e-3


def test_an_adapter_where_none_is_known_is_left_to_its_own_code():
    model = add_actor(make("llama", max_position_embeddings=512).to(DEVICE), Lora(r=4, targets=("embed_tokens",)))
    engine = engine_of(Policy(model, attention="sdpa").eval(), max_length=250, max_tokens=8000)
    assert not isinstance(engine.scheduler.store, PagesStore)
    run(engine)


def test_pages_and_the_general_path_draw_the_same():
    policy = small_policy("qwen3")
    drawn = []
    ways = [("general", False), ("pages", False), *([("pages", True)] if DEVICE == "cuda" else [])]
    for layout, graphs in ways:
        engine = engine_of(policy, layout=layout, graphs=graphs, max_length=400)
        played = run(engine, *(play(engine, f"{i}", 2, SAMPLING, START) for i in range(EPISODES)))
        drawn.append([ids for calls in played for ids, _, _ in answers(calls)])
    assert len(drawn[0]) == 2 * EPISODES
    if DEVICE == "cpu":
        assert drawn[0] == drawn[1]
    # A GPU adds up in another order for other shapes: where two tokens are about to be drawn, either may be.
    for other in drawn[1:]:
        assert sum(map(operator.eq, drawn[0], other)) >= 0.9 * len(drawn[0])


def test_stops_lengths_temperatures_and_cuts_are_each_episodes_own():
    policy = small_policy("llama")
    engine = engine_of(policy, layout="pages")
    ways = [
        SamplingConfig(max_new_tokens=1),
        SamplingConfig(max_new_tokens=30, temperature=0.0),
        SamplingConfig(max_new_tokens=7, top_k=2),
        SamplingConfig(max_new_tokens=40, temperature=1.5, top_p=0.8),
    ]

    async def one(i: int):
        return await engine.generate(f"{i}", prompt(f"{i}", 20), sampling=ways[i % 4], seed=i, stop_ids=[9, 10, 11])

    drawn = run(engine, *(one(i) for i in range(16)))
    for i, each in enumerate(drawn):
        assert len(each.completion_ids) == len(each.logprobs) <= ways[i % 4].max_new_tokens
        assert not {9, 10, 11} & set(each.completion_ids[:-1])
        assert each.finish == ("stop" if each.completion_ids[-1] in (9, 10, 11) else "length")
    assert any(each.finish == "stop" for each in drawn)
    engine = engine_of(policy, layout="general", max_length=100)
    again = run(engine, *(one(i) for i in range(16)))
    assert [each.completion_ids for each in again] == [each.completion_ids for each in drawn]


def test_too_little_memory_drops_idle_episodes():
    policy = small_policy("qwen3")
    engine = engine_of(policy, layout="pages", max_tokens=64 * 8)
    played = run(engine, *(play(engine, f"{i}", 2, SAMPLING, prompt(f"{i}", 90)) for i in range(6)))
    assert engine.scheduler.num_dropped > 0
    assert scored(policy, [call for calls in played for call in calls]) < 1e-4


@on_cuda
def test_tokens_are_chosen_as_plain_draws_choose_them():
    from bough.engines.local.kernels import choose

    torch.manual_seed(0)
    logits_NV = torch.randn(64, 49_152, device="cuda") * 3
    rows = [(SamplingConfig(temperature=[0.0, 0.7, 1.0, 1.3][n % 4]), uniform(5, n)) for n in range(64)]
    parameters = SamplingParams.of(rows, "cuda")
    token_N, logprob_N = draw(logits_NV, parameters, cut=False)
    ours_N, value_N = choose(logits_NV, parameters.temperature_B, parameters.uniform_B)
    assert (ours_N == token_N).sum() >= 63  # a sum that is rounded otherwise may end one token further
    same = ours_N == token_N
    assert (value_N - logprob_N)[same].abs().max() < 1e-4


@on_cuda
def test_choices_are_as_frequent_as_their_probabilities():
    from bough.engines.local.kernels import choose

    logits_V = torch.tensor([0.0, 1.0, -1.0, float("-inf"), 2.0, 0.5], device="cuda")
    number = 200_000
    uniform_N = torch.rand(number, dtype=torch.float64, device="cuda")
    token_N, _ = choose(logits_V.expand(number, -1).contiguous(), torch.ones(number, device="cuda").double(), uniform_N)
    share_V = torch.bincount(token_N, minlength=6) / number
    assert (share_V - logits_V.softmax(0)).abs().max() < 0.005
    assert share_V[3] == 0


@on_cuda
@pytest.mark.parametrize("lora", [False, True])
def test_in_16_bits_it_is_as_close_as_rounding_allows(lora):
    policy = small_policy("qwen3", lora=lora, dtype=torch.bfloat16)
    engine = engine_of(policy, layout="pages")
    played = run(engine, *(play(engine, f"{i}", 2, SAMPLING, START) for i in range(EPISODES)))
    assert scored(policy, [call for calls in played for call in calls]) < 0.3


@on_cuda
def test_weights_in_32_bits_that_are_computed_in_16_are_followed():
    model = make("llama", max_position_embeddings=512).to(DEVICE)
    policy = Policy(model, autocast=torch.bfloat16).eval()
    engine = engine_of(policy, layout="pages")
    assert engine.scheduler.store.kv.dtype == torch.bfloat16
    played = run(engine, *(play(engine, f"{i}", 2, SAMPLING, START) for i in range(EPISODES)))
    assert scored(policy, [call for calls in played for call in calls]) < 0.3


@on_cuda
@pytest.mark.parametrize(("heads", "groups", "size"), [(9, 3, 64), (16, 8, 128), (4, 4, 16), (8, 1, 256)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("prompts", [False, True])
def test_kernels_compute_what_plain_torch_does(heads, groups, size, normed, prompts):
    from bough.engines.local import kernels

    torch.manual_seed(1)
    lengths = [1, 3, 70, 33, 1, 130] if prompts else [1] * 6
    known = [100, 0, 5, 64, 63, 200] if prompts else [0, 1, 63, 64, 127, 250]
    block = block_size(heads // groups) if prompts else 1
    position_T = torch.tensor([k + i for k, n in zip(known, lengths, strict=True) for i in range(n)], dtype=torch.int32)
    row_T = torch.tensor([r for r, n in enumerate(lengths) for _ in range(n)], dtype=torch.int32)
    starts = [sum(lengths[:i]) for i in range(6)]
    blocks = [(s + i, min(block, n - i)) for s, n in zip(starts, lengths, strict=True) for i in range(0, n, block)]
    first_B, count_B = torch.tensor([*blocks, (0, 0)], dtype=torch.int32).T.contiguous()
    tokens = Tokens(position_T.cuda(), row_T.cuda(), first_B.cuda(), count_B.cuda(), block)
    table = torch.randperm(6 * 6)[: 6 * 6].view(6, 6).int().cuda()
    qkv_TX = torch.randn(len(row_T), (heads + 2 * groups) * size, device="cuda")
    rotary = (torch.randn(512, size, device="cuda"), torch.randn(512, size, device="cuda"))
    norms = (torch.randn(size, device="cuda"), torch.randn(size, device="cuda")) if normed else None
    kv = torch.randn(2, 36, groups, PAGE, size, device="cuda")
    kept = kv.clone()
    query = kernels.rotate_and_store(qkv_TX, kv, table, tokens, rotary, norms, 1e-6)
    plain = plain_kernels.rotate_and_store(qkv_TX, kept, table, tokens, rotary, norms, 1e-6)
    assert torch.allclose(query, plain, atol=1e-4)
    assert torch.allclose(kv, kept, atol=1e-4)
    for window in (1 << 30, 40):
        expected = plain_kernels.attend(query, kv, table, tokens, 0.1, window, 1)
        for splits in (1, 2, 8):
            assert torch.allclose(kernels.attend(query, kv, table, tokens, 0.1, window, splits), expected, atol=1e-4)


@on_cuda
def test_norms_and_gates_are_those_of_plain_torch():
    from bough.engines.local import kernels

    torch.manual_seed(0)
    for width in (64, 576, 2560):
        x, residual, weight = torch.randn(7, width), torch.randn(7, width), torch.randn(width)
        x, residual, weight = x.cuda(), residual.cuda(), weight.cuda()
        kept = residual.clone()
        ours = kernels.add_norm(x, residual, weight, 1e-5, torch.float32)
        assert torch.allclose(ours, plain_kernels.add_norm(x, kept, weight, 1e-5, torch.float32), atol=1e-5)
        assert torch.equal(residual, kept)
        both = torch.randn(5, 2 * width, device="cuda")
        assert torch.allclose(kernels.gate(both), plain_kernels.gate(both), atol=1e-5)
