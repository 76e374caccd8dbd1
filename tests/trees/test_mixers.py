"""A mixer is known by the functions it calls, and without a tree it computes what it always did."""

import functools
import sys

import pytest
import torch
from torch import nn

from bough.policy.policy import Policy
from bough.trees import mixers
from bough.trees.mixers import known_mixers, let_mixers_branch
from tests.policy.families import HYBRIDS, make
from tests.policy.test_policy import EPISODE


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
