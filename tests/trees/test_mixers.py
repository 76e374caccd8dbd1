"""A mixer is known by the functions it calls, and without a tree it computes what it always did."""

import functools
import importlib.util
import itertools
import math
import sys

import numpy as np
import pytest
import torch
from torch import nn

from bough.policy.policy import Policy
from bough.trees import mixers
from bough.trees import recurrent as recurrent_module
from bough.trees.mixers import (
    DELTA_RULE,
    KIMI_DELTA_RULE,
    LINEAR_ATTENTION,
    Sight,
    branching_obstacle,
    fla_kernel,
    known_mixers,
    layer_sights,
    let_mixers_branch,
    with_gates_per_channel,
)
from bough.trees.recurrent import Branching
from tests.policy.families import HYBRIDS, PLAIN, TREES, make
from tests.policy.test_policy import EPISODE, distance, values_and_gradient
from tests.trees.samples import DEEP


def causal_conv1d_fn(hidden_states, weight, *_):
    return hidden_states * weight


def new_recurrence(hidden_states):
    return hidden_states.cumsum(1)


class ShortConvolution(nn.Module):
    def forward(self, hidden_states, attention_mask=None):
        return causal_conv1d_fn(hidden_states, 1)


class WithUnknownRecurrence(nn.Module):
    def forward(self, hidden_states, attention_mask=None):
        return new_recurrence(causal_conv1d_fn(hidden_states, 1))


class WithoutMask(nn.Module):
    def forward(self, hidden_states):
        return causal_conv1d_fn(hidden_states, 1)


def test_a_mixer_is_known_only_if_all_it_calls_is_known():
    modules = nn.ModuleList([ShortConvolution(), WithUnknownRecurrence(), WithoutMask(), nn.Linear(1, 1)])
    assert known_mixers(modules) == [modules[0]]


@pytest.mark.parametrize("family", HYBRIDS)
def test_each_layer_with_state_has_one_known_mixer(family):
    model = make(family)
    kinds = model.config.layer_types
    assert len(known_mixers(model)) == sum(kind in ("conv", "linear_attention", "hybrid") for kind in kinds) > 0


@torch.no_grad()
def test_without_a_tree_nothing_changes():
    model = make("granitemoehybrid")
    tokens = torch.arange(10)[None]
    before = model(tokens).logits
    functions = dict(vars(sys.modules[type(model).__module__]))
    let_mixers_branch(model)
    assert torch.equal(model(tokens).logits, before)
    assert vars(sys.modules[type(model).__module__]) == functions


@pytest.mark.parametrize("family", ["qwen3_5_text", "bamba"])
@torch.no_grad()
def test_installed_kernels_are_left_out_on_a_cpu(family, monkeypatch):
    """transformers puts the kernels of flash-linear-attention and others in the place of its functions."""
    model = make(family)
    expected = [torch.cat(Policy(model).logprobs(EPISODE, share=share)) for share in (True, False)]
    code = sys.modules[type(model).__module__]
    for name in ("causal_conv1d_fn", "torch_chunk_gated_delta_rule", "mamba2_chunk_scan"):
        if hasattr(code, name):

            @functools.wraps(getattr(code, name))
            def kernel(*_, **__):
                raise RuntimeError("needs a GPU")

            monkeypatch.setattr(code, name, kernel)
    monkeypatch.setattr(mixers, "kernels_installed", lambda: True)
    found = [torch.cat(Policy(model, probe=False).logprobs(EPISODE, share=share)) for share in (True, False)]
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("family", [*TREES, *HYBRIDS])
def test_attention_over_given_positions_and_known_mixers_can_branch(family):
    assert branching_obstacle(make(family).base_model) is None


@pytest.mark.parametrize(
    ("family", "obstacle"),
    [
        ("mamba", "it has layers of kind linear_attention"),
        ("gpt_neo", "it has layers of kind local"),
        ("bloom", "its positions do not come from position ids"),
        ("phi3", "its rotary frequencies depend on the length of the row"),
    ],
)
def test_what_looks_along_the_row_cannot(family, obstacle):
    assert branching_obstacle(make(family).base_model) == obstacle
    assert family in PLAIN


def test_each_kind_of_layer_has_its_own_sight_and_layers_with_state_have_none():
    assert layer_sights(make("gemma2").model) == {"full_attention": Sight(), "sliding_attention": Sight(window=3)}
    assert layer_sights(make("mistral").model) == {"sliding_attention": Sight(window=3)}
    assert layer_sights(make("llama4").model) == {"chunked_attention": Sight(chunk=3), "full_attention": Sight()}
    assert layer_sights(make("lfm2").model) == {"full_attention": Sight()}
    assert layer_sights(make("nemotron_h").model) == {"full_attention": Sight()}
    assert layer_sights(make("falcon_h1").model) == {"full_attention": Sight()}  # in each layer, beside a mixer
    assert layer_sights(make("mamba2").backbone) == {}


def test_a_mixer_beside_unknown_state_is_not_enough():
    model = make("lfm2").model
    model.layers[1].self_attn.conv = torch.nn.Conv1d(64, 64, 2)
    assert branching_obstacle(model) == "its layers carry state along the sequence"
    model = make("lfm2").model
    model.layers[0].conv = torch.nn.Linear(64, 64)
    assert branching_obstacle(model) == "it has layers of kind conv"


def test_a_sight_begins_at_a_position():
    positions = torch.arange(5)
    assert Sight(window=3).since(positions).tolist() == [-2, -1, 0, 1, 2]  # the token itself and two before it
    assert Sight(chunk=2).since(positions).tolist() == [0, 0, 2, 2, 4]
    assert Sight().since(positions) is None


NEEDS_FLA = pytest.mark.skipif(
    not (torch.cuda.is_available() and importlib.util.find_spec("fla")),
    reason="needs a CUDA device and flash-linear-attention",
)


def recurrent(q, k, v, g, beta, state):
    """One sequence [T, heads, size], token by token: with `beta` the delta rule, without it plain linear attention."""
    outputs = []
    for t in range(len(q)):
        decay = g[t].exp()
        state = state * (decay[..., None] if decay.dim() > 1 else decay[:, None, None])
        new = v[t] if beta is None else (v[t] - torch.einsum("hk,hkv->hv", k[t], state)) * beta[t][:, None]
        state = state + k[t][..., None] * new[:, None]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state))
    return torch.stack(outputs), state


def kernel(
    q, k, v, *, g, cu_seqlens=None, cu_seqlens_cpu=None, output_final_state=False, initial_state=None, beta=None,
    scale=None, use_qk_l2norm_in_kernel=False,
):  # fmt: skip
    """The arguments, shapes and results of fla's `chunk_gated_delta_rule`, `chunk_kda` and `chunk_simple_gla`."""
    if use_qk_l2norm_in_kernel:
        q, k = (each * (each.pow(2).sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (q, k))
    q = q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    inputs = [q, k, v, g, beta]
    if cu_seqlens is None:
        sequences = [[None if each is None else each[row] for each in inputs] for row in range(len(q))]
    else:
        assert len(q) == 1 and output_final_state
        assert cu_seqlens_cpu is None or cu_seqlens.tolist() == cu_seqlens_cpu.tolist()
        bounds = itertools.pairwise(cu_seqlens.tolist())
        sequences = [[None if each is None else each[0, a:b] for each in inputs] for a, b in bounds]
    zero = v.new_zeros(v.shape[2], k.shape[3], v.shape[3])
    found = [recurrent(*one, zero if initial_state is None else initial_state[s]) for s, one in enumerate(sequences)]
    outputs, states = zip(*found, strict=True)
    return torch.stack(outputs) if cu_seqlens is None else torch.cat(outputs)[None], torch.stack(states)


def kernel_per_channel(q, k, v, *, g, **options):
    assert g.shape == k.shape
    return kernel(q, k, v, g=g, **options)


FAMILIES = [("qwen3_5_text", DELTA_RULE), ("kimi_linear", KIMI_DELTA_RULE), ("bamba", LINEAR_ATTENTION)]


@pytest.mark.parametrize("few_levels", [1, 100], ids=["two passes", "level by level"])
@pytest.mark.parametrize(("family", "name"), FAMILIES)
def test_kernels_are_given_segments_without_padding(family, name, few_levels, monkeypatch):
    monkeypatch.setattr(recurrent_module, "FEW_LEVELS", few_levels)
    policy = Policy(make(family))
    expected = values_and_gradient(policy, DEEP)
    offered = [kernel] if name == KIMI_DELTA_RULE else [kernel, with_gates_per_channel(kernel_per_channel)]
    for each in offered:
        asked = set()
        monkeypatch.setattr(mixers, "fla_kernel", lambda name, _, each=each, asked=asked: asked.add(name) or each)
        found = values_and_gradient(policy, DEEP)
        assert asked == {name}
        assert distance(found[0], expected[0]) < 5e-5
        assert distance(found[1], expected[1]) < 5e-5


def test_plain_rows_are_trained_with_another_kernel_where_fla_refuses_its_own(monkeypatch):
    policy = Policy(make("qwen3_5_text"))
    expected = values_and_gradient(policy, EPISODE, share=False)
    monkeypatch.setattr(mixers, "kernels_installed", lambda: True)
    monkeypatch.setattr(mixers, "_on_cpu", lambda _: False)
    monkeypatch.setattr(mixers, "head_gates_refused", lambda: True)
    asked = []
    per_channel = with_gates_per_channel(kernel_per_channel)
    monkeypatch.setattr(mixers, "fla_kernel", lambda name, _: asked.append(name) or per_channel)
    found = values_and_gradient(policy, EPISODE, share=False)
    assert set(asked) == {DELTA_RULE}
    assert distance(found[0], expected[0]) < 5e-5
    assert distance(found[1], expected[1]) < 5e-5
    asked.clear()
    with torch.no_grad():  # only the gradient is refused
        policy.logprobs(EPISODE, share=False)
    assert not asked


@pytest.mark.parametrize("refused", [False, True])
def test_kernels_with_a_gate_per_head_are_replaced_where_they_are_refused(refused, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(mixers, "head_gates_refused", lambda: refused)
    imported = []
    monkeypatch.setattr(mixers, "_imported", lambda name: imported.append(name) or kernel)
    for name in (DELTA_RULE, LINEAR_ATTENTION, KIMI_DELTA_RULE):
        assert (fla_kernel(name, torch.zeros(1)) is kernel) == (not refused or name == KIMI_DELTA_RULE)
    used = [KIMI_DELTA_RULE, "gla.chunk_gla"] if refused else [DELTA_RULE, LINEAR_ATTENTION]
    assert imported == [*used, KIMI_DELTA_RULE]


@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (3, 4), (4, 4), (5, 8), (70, 64)])
def test_short_segments_are_computed_in_short_chunks(length, chunk):
    branching = Branching(np.arange(-1, length - 1), torch.device("cpu"))
    asked = []

    def rule(q, k, v, *, g, beta, initial_state, **options):
        asked.append((initial_state, options))
        return v, v[:, 0]

    def scan(x, dt, A, b, c, **options):
        asked.append((dt, options))
        return x, x[:, 0]

    x, gate = torch.rand(1, length, 2, 3), torch.rand(1, length, 2)
    found, _ = mixers.tree_delta_rule(branching, rule, x, x, x, gate, gate)
    assert torch.equal(found, x)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": False, "chunk_size": chunk}
    assert asked.pop() == (None, options)
    found = mixers.tree_scan(branching, scan, x, gate - 0.5, torch.ones(2), x, x, chunk_size=64)
    assert torch.equal(found, x)
    dt, options = asked.pop()
    assert torch.equal(dt, (gate - 0.5).clamp(min=0)), "time steps are given, and at least 0"
    assert options == {"chunk_size": chunk, "D": None, "initial_states": None, "return_final_states": True}


def test_a_cpu_and_a_missing_package_have_no_kernel(monkeypatch):
    assert fla_kernel("kda.chunk_kda", torch.zeros(1)) is None
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    assert fla_kernel("no_such_package.kernel", torch.zeros(1)) is None


@NEEDS_FLA
@pytest.mark.parametrize("name", [DELTA_RULE, KIMI_DELTA_RULE, LINEAR_ATTENTION])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpus_kernel_gives_outputs_states_and_gradients_of_the_recurrence(name, dtype):
    """Segments of 1, 70 and 5 tokens, each from a state of its own; the products are in TF32 or bfloat16."""
    generator = torch.Generator().manual_seed(0)
    bounds = torch.tensor([0, 1, 71, 76])
    heads, size = 2, 32
    gate = (1, 76, heads, size) if name == KIMI_DELTA_RULE else (1, 76, heads)
    shapes = [(1, 76, heads, size)] * 3 + [gate, (1, 76, heads), (3, heads, size, size)]
    q, k, v, g, beta, state = (torch.randn(*shape, generator=generator) for shape in shapes)
    q, k, v = (each.to(dtype).float() for each in (q, k, v))
    inputs = [q, k, v, -torch.nn.functional.softplus(g), beta.sigmoid(), state]

    def run(function, device):
        leaves = [each.clone().to(device).requires_grad_() for each in inputs]
        q, k, v, g, beta, state = leaves
        if device == "cuda":
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        more = {"scale": 1.0} if name == LINEAR_ATTENTION else {"beta": beta, "use_qk_l2norm_in_kernel": True}
        found = function(
            q, k, v, g=g, initial_state=state, output_final_state=True, cu_seqlens=bounds.to(device),
            cu_seqlens_cpu=bounds, **more,
        )  # fmt: skip
        weights = torch.Generator().manual_seed(1)
        sum((each.float() * torch.randn(each.shape, generator=weights).to(device)).sum() for each in found).backward()
        return [
            each.detach().float().cpu() for each in (*found, *(leaf.grad for leaf in leaves if leaf.grad is not None))
        ]

    used = fla_kernel(name, torch.zeros(1, device="cuda"))
    assert used is not None
    found, expected = run(used, "cuda"), run(kernel, "cpu")
    assert len(found) == len(expected)
    tolerance = 5e-3 if dtype == torch.float32 else 3e-2
    assert [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if distance(a, b) > tolerance] == []
