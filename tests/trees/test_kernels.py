"""What flash-linear-attention's kernels are given on a GPU, with kernels of the same meaning that run on a CPU."""

import itertools
import math

import numpy as np
import pytest
import torch

from bough.policy.policy import Policy
from bough.trees import delta_net, mamba2
from bough.trees.kernels import fla_kernel
from bough.trees.recurrent import Branching
from tests.policy.families import make
from tests.policy.test_policy import EPISODE, distance, values_and_gradient


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
    q, k, v, *, g, cu_seqlens, cu_seqlens_cpu, output_final_state, initial_state=None, beta=None, scale=None,
    use_qk_l2norm_in_kernel=False,
):  # fmt: skip
    """The arguments, shapes and results of fla's `chunk_gated_delta_rule`, `chunk_kda` and `chunk_simple_gla`."""
    assert len(q) == 1 and output_final_state and cu_seqlens.tolist() == cu_seqlens_cpu.tolist()
    if use_qk_l2norm_in_kernel:
        q, k = (each * (each.pow(2).sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (q, k))
    q = q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    outputs, states = [], []
    for s, (start, stop) in enumerate(itertools.pairwise(cu_seqlens)):
        zero = v.new_zeros(v.shape[2], k.shape[3], v.shape[3])
        parts = (None if each is None else each[0, start:stop] for each in (q, k, v, g, beta))
        output, state = recurrent(*parts, zero if initial_state is None else initial_state[s])
        outputs.append(output)
        states.append(state)
    return torch.cat(outputs)[None], torch.stack(states)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3_5_text", "gated_delta_rule.chunk_gated_delta_rule"),
        ("kimi_linear", "kda.chunk_kda"),
        ("bamba", "simple_gla.chunk_simple_gla"),
    ],
)
def test_kernels_are_given_one_level_at_a_time_without_padding(family, name, monkeypatch):
    policy = Policy(make(family))
    expected = values_and_gradient(policy, EPISODE)
    asked = set()
    for module in (delta_net, mamba2):
        monkeypatch.setattr(module, "fla_kernel", lambda name, _: asked.add(name) or kernel)
    found = values_and_gradient(policy, EPISODE)
    assert asked == {name}
    assert distance(found[0], expected[0]) < 5e-5
    assert distance(found[1], expected[1]) < 5e-5


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
    found, _ = delta_net.tree_delta_rule(branching, rule, x, x, x, gate, gate)
    assert torch.equal(found, x)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": False, "chunk_size": chunk}
    assert asked.pop() == (None, options)
    found = mamba2.tree_scan(branching, scan, x, gate - 0.5, torch.ones(2), x, x, chunk_size=64)
    assert torch.equal(found, x)
    dt, options = asked.pop()
    assert torch.equal(dt, (gate - 0.5).clamp(min=0)), "time steps are given, and at least 0"
    assert options == {"chunk_size": chunk, "D": None, "initial_states": None, "return_final_states": True}


def test_a_cpu_and_a_missing_package_have_no_kernel(monkeypatch):
    assert fla_kernel("kda.chunk_kda", torch.zeros(1)) is None
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    assert fla_kernel("no_such_package.kernel", torch.zeros(1)) is None
