"""Models whose layers carry state read trees as they read plain rows: every kind of layer, every way of training."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from tests.policy.families import HYBRIDS, make
from tests.policy.test_policy import EPISODE, distance, values_and_gradient, with_actor
from tests.trees.samples import DEEP, call, call_sets

# A convolution alone, a gated delta net, Mamba-2 with and without attention.
KINDS = ["lfm2", "qwen3_5_text", "granitemoehybrid", "mamba2"]
PROPERTY = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=KINDS)
def policy(request) -> Policy:
    return Policy(make(request.param))


def assert_equal(policy: Policy, calls, *, budget: int = 1000) -> None:
    assert policy.obstacle is None
    shared = values_and_gradient(policy, calls, budget=budget)
    alone = values_and_gradient(policy, calls, share=False)
    assert distance(shared[0], alone[0]) < 5e-5
    assert distance(shared[1], alone[1]) < 5e-5


@PROPERTY
@given(calls=call_sets(max_calls=5), budget=st.sampled_from([8, 20, 1000]))
def test_a_tree_equals_its_calls_one_by_one(policy, calls, budget):
    assert_equal(policy, calls, budget=budget)


# Branches one, two and three tokens after each other, all within one convolution; a prefix of one token; a call twice.
CLOSE = [
    call([1], [2, 3, 4, 5, 6]),
    call([1], [7, 8]),
    call([1, 2], [9, 10, 11]),
    call([1, 2, 3], [12, 13]),
    call([1, 2, 3, 4], [14]),
    call([1, 2], [9, 10, 11]),
]


@pytest.mark.parametrize("family", HYBRIDS)
def test_forks_within_one_convolution_give_the_same(family):
    assert_equal(Policy(make(family)), CLOSE)


def test_chunks_and_segments_have_different_lengths(policy):
    """Longer than a chunk of the recurrence, with forks inside and at the ends of chunks."""
    line = [(7 * i) % 200 for i in range(75)]
    calls = [call(line[:n], [n, n + 1, n + 2]) for n in (2, 5, 63, 64, 66)]
    assert_equal(policy, [*calls, call(line[:4], line[4:])])


def test_a_tree_gets_nothing_from_the_tree_before_it(policy):
    """No gradient at all goes from the second tree of a row to a token of the first, or back."""
    calls = [call([1, 2, 3], [4, 5, 6]), call([1, 2, 3], [7, 8]), call([11, 12, 13], [14, 15]), call([11, 12], [16])]
    (row,) = policy.rows(calls)
    first = row.tree.token < 10
    assert first[:6].all() and not first[6:].any()
    seen = []
    hook = policy.base.get_input_embeddings().register_forward_hook(lambda *_: seen.append(_[2]) or _[2])
    try:
        answers = policy(row).logprobs
    finally:
        hook.remove()
    for some, mine in ((answers[:2], first), (answers[2:], ~first)):
        (slope,) = torch.autograd.grad(torch.cat(some).sum(), seen[0], retain_graph=True)
        size_L = slope[0].abs().sum(-1)
        assert (size_L[torch.from_numpy(mine)] > 0).any()
        assert (size_L[torch.from_numpy(~mine)] == 0).all()


@pytest.mark.parametrize("family", KINDS)
def test_adapters_and_checkpointing_change_nothing(family):
    """Each row is computed again in the backward pass, after all other rows were read."""
    model = make(family)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(with_actor(model, Lora(r=4))).train()
    checkpointed = values_and_gradient(policy, EPISODE, budget=12)
    alone = values_and_gradient(policy.eval(), EPISODE, share=False)
    assert distance(checkpointed[0], alone[0]) < 5e-5
    assert distance(checkpointed[1], alone[1]) < 5e-5


@pytest.mark.parametrize("family", KINDS)
def test_the_reference_reads_trees_too(family):
    base = torch.cat(Policy(make(family)).logprobs(EPISODE, share=False))
    policy = Policy(with_actor(make(family), Lora(r=4)))
    with policy.reference(), torch.no_grad():
        torch.testing.assert_close(torch.cat(policy.logprobs(EPISODE)), base)
    assert distance(torch.cat(policy.logprobs(EPISODE)), base) > 1e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text", "kimi_linear", "bamba"])
def test_a_gpu_gives_the_same_with_whatever_kernels_it_has(family, share):
    """FlexAttention, and flash-linear-attention where it is installed; its products are in TF32."""
    wide = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "mamba_d_state": 32, "linear_head_dim": 32}
    model = make(family, **{name: size for name, size in wide.items() if name in HYBRIDS[family][1]})
    expected = values_and_gradient(Policy(model), DEEP, share=False)
    found = values_and_gradient(Policy(model.cuda()), DEEP, share=share)
    assert distance(found[0].cpu(), expected[0]) < 5e-3
    assert distance(found[1].cpu(), expected[1]) < 5e-2
