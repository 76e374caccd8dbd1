"""A recurrence over a tree gives each node what it gets on its path alone."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.trees.build import TokenTree
from bough.trees.recurrent import Branching, TwoPass, odd_windows, segments_by_level, tree_convolution
from tests.trees.samples import call_sets

CPU = torch.device("cpu")


#     0 ─ 1 ─┬─ 2 ─ 3 ─┬─ 4
#            │         └─ 5 ─ 6      8 ─ 9   (another tree)
#            └─ 7
PARENTS = np.array([-1, 0, 1, 2, 3, 3, 5, 1, -1, 8])


def parents(max_nodes: int = 24) -> st.SearchStrategy[np.ndarray]:
    """Random forests in any order in which a parent comes before its children."""
    return st.lists(st.integers(-1, max_nodes), min_size=1, max_size=max_nodes).map(
        lambda drawn: np.array([min(parent, node - 1) for node, parent in enumerate(drawn)], np.int64)
    )


def trees() -> st.SearchStrategy[np.ndarray]:
    return call_sets().map(lambda calls: TokenTree.of(calls).parent)


def test_segments_end_at_forks_and_wait_for_the_segment_they_continue():
    found = [
        (level.starts.tolist(), level.lengths.tolist(), level.parents.tolist()) for level in segments_by_level(PARENTS)
    ]
    assert found == [
        ([0, 8], [2, 2], []),  # the two roots
        ([2, 7], [2, 1], [0, 0]),  # both continue nodes 0 and 1
        ([5, 4], [2, 1], [0, 0]),  # the longest first; both continue nodes 2 and 3
    ]


@given(parents() | trees())
def test_every_node_is_in_one_segment_and_follows_its_parent(parent_L):
    levels = segments_by_level(parent_L)
    nodes = np.concatenate([level.nodes for level in levels])
    assert sorted(nodes) == list(range(len(parent_L)))
    for above, level in zip([None, *levels], levels, strict=False):
        assert sorted(level.lengths, reverse=True) == list(level.lengths)
        for s, (start, length) in enumerate(zip(level.starts, level.lengths, strict=True)):
            inner = np.arange(start + 1, start + length)
            assert (parent_L[inner] == inner - 1).all()
            if above is None:
                assert parent_L[start] == -1 and not len(level.parents)
            else:
                p = level.parents[s]
                assert parent_L[start] == above.starts[p] + above.lengths[p] - 1


def test_windows_after_forks_and_roots_are_found_by_hand():
    nodes_F, ancestors_FK = odd_windows(PARENTS, 3)
    assert dict(zip(nodes_F.tolist(), ancestors_FK.tolist(), strict=True)) == {
        5: [2, 3, 5],
        6: [3, 5, 6],
        7: [0, 1, 7],
        8: [-1, -1, 8],
        9: [-1, 8, 9],
    }


@given(parents() | trees(), st.integers(1, 5))
def test_all_other_windows_are_the_last_nodes_of_the_row(parent_L, size):
    nodes_F, ancestors_FK = odd_windows(parent_L, size)
    odd = dict(zip(nodes_F.tolist(), ancestors_FK.tolist(), strict=True))
    for node in range(len(parent_L)):
        window = [node]
        while len(window) < size:
            window.insert(0, int(parent_L[window[0]]) if window[0] >= 0 else -1)
        in_row = [max(node - back, -1) for back in range(size)][::-1]
        assert odd.get(node, in_row) == window
        assert (node in odd) == (window != in_row)


def leaky_sum(inputs, before_S):
    """state = decay * state + x. A decay of 1 and an x of 0 keep a state; both are written so that 0 pads."""
    x_SN, forget_SN = inputs
    state_S = x_SN.new_zeros(len(x_SN)) if before_S is None else before_S
    outputs = []
    for x_S, forget_S in zip(x_SN.unbind(1), forget_SN.unbind(1), strict=True):
        state_S = (1 - forget_S) * state_S + x_S
        outputs.append(state_S)
    return torch.stack(outputs, 1), state_S


def packed_leaky_sum(inputs, before_S, bounds, bounds_on_cpu):
    assert bounds.tolist() == bounds_on_cpu.tolist()
    outputs, states = [], []
    for s, (start, stop) in enumerate(itertools.pairwise(bounds)):
        segment = [each[:, start:stop] for each in inputs]
        output, state = leaky_sum(segment, None if before_S is None else before_S[s : s + 1])
        outputs.append(output[0])
        states.append(state)
    return torch.cat(outputs)[None], torch.cat(states)


def by_path(parent_L, x_L, forget_L):
    states = []
    for node, parent in enumerate(parent_L):
        before = states[parent] if parent >= 0 else 0.0
        states.append((1 - forget_L[node]) * before + x_L[node])
    return torch.stack(states)


@settings(max_examples=50, deadline=None)
@given(parents() | trees())
def test_states_and_gradients_are_those_of_each_path(parent_L):
    inputs = torch.rand(2, len(parent_L), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.arange(1.0, len(parent_L) + 1)
    expected_of = inputs.clone().requires_grad_()
    expected = by_path(parent_L, *expected_of)
    (expected * weights).sum().backward()
    branching = Branching(parent_L, CPU)
    for run, step in ((branching.scan, leaky_sum), (branching.packed_scan, packed_leaky_sum)):
        found_of = inputs.clone().requires_grad_()
        found = run(list(found_of), step)
        (found * weights).sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(found_of.grad, expected_of.grad)


def outer_products(inputs, before_S, bounds, bounds_on_cpu):
    """state = gate * state (1 - beta k k') + beta k v': linear in the state, with keys and values of different size."""
    assert bounds.tolist() == bounds_on_cpu.tolist()
    outputs, states = [], []
    for s, (start, stop) in enumerate(itertools.pairwise(bounds)):
        state = before_S[s]
        for q, k, v, gate in zip(*(each[0, start:stop] for each in inputs), strict=True):
            state = gate[:, None, None] * state
            new = (v - torch.einsum("hk,hkv->hv", k, state)) / k.shape[-1]
            state = state + k[..., None] * new[:, None]
            outputs.append(torch.einsum("hk,hkv->hv", q, state))
        states.append(state)
    return torch.stack(outputs)[None], torch.stack(states)


def beside_a_fork(parent_L):
    """Another tree first, so that there are at least two levels."""
    return np.concatenate([[-1, 0, 0], np.where(parent_L < 0, -1, parent_L + 3)])


@settings(max_examples=40, deadline=None)
@given((parents() | trees()).map(beside_a_fork), st.sampled_from([(3, 3), (2, 4), (4, 2)]))
def test_two_passes_give_what_one_launch_for_each_level_gives(parent_L, sizes):
    key_size, value_size = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, key_size), (2, key_size), (2, value_size), (2,)]
    inputs = [torch.rand(len(parent_L), *shape, generator=generator) for shape in shapes]
    branching = Branching(parent_L, CPU)
    launches = []

    def step(inputs, before_S, bounds, bounds_on_cpu):
        launches.append(bounds.tolist())
        if before_S is None:
            before_S = torch.zeros(len(bounds) - 1, 2, inputs[1].shape[-1], inputs[2].shape[-1])
        return outer_products(inputs, before_S, bounds, bounds_on_cpu)

    found = []
    for run in (branching.packed_scan, TwoPass.of(branching._segments, torch.from_numpy).scan):
        launches.clear()
        leaves = [each.clone().requires_grad_() for each in inputs]
        output = run(leaves, step)
        (output * torch.arange(1.0, 1 + len(parent_L))[:, None, None]).sum().backward()
        found.append([output.detach(), *(leaf.grad for leaf in leaves)])
    assert len(launches) == 2
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_every_batch_of_a_level_starts_from_its_own_parents():
    #  0 ─┬─ 1 … 8       10 ─┬─ 11
    #     └─ 9               └─ 12
    parent_L = np.array([-1, *range(8), 0, -1, 10, 10])
    branching = Branching(parent_L, CPU)
    assert [batch.num_segments for batch in branching.levels[1].batches] == [1, 3]
    x_L = torch.ones(13)
    x_L[10] = 5
    found = branching.scan([x_L, torch.zeros(13)], leaky_sum)
    assert found.tolist() == [1, *range(2, 10), 2, 5, 6, 6]


def convolve(hidden_states, weight, bias=None, activation=None):
    """As transformers computes it."""
    size = weight.shape[1]
    out = torch.nn.functional.conv1d(hidden_states, weight[:, None], bias, padding=size - 1, groups=len(weight))
    return torch.tanh(out[..., : hidden_states.shape[-1]]) if activation == "tanh" else out


@settings(max_examples=50, deadline=None)
@given(parents() | trees())
def test_a_convolution_reads_ancestors(parent_L):
    generator = torch.Generator().manual_seed(0)
    x_CL, weight, bias = (torch.randn(*size, generator=generator) for size in ((2, len(parent_L)), (2, 3), (2,)))
    found = tree_convolution(Branching(parent_L, CPU), convolve, x_CL[None], weight, bias, activation="tanh")[0]
    for node in range(len(parent_L)):
        path, ancestor = [], node
        while ancestor >= 0:
            path.insert(0, ancestor)
            ancestor = parent_L[ancestor]
        expected = convolve(x_CL[None, :, path], weight, bias, activation="tanh")[0, :, -1]
        torch.testing.assert_close(found[:, node], expected)


def test_no_state_crosses_from_one_tree_to_the_next():
    inputs = torch.zeros(2, len(PARENTS), requires_grad=True)
    found = Branching(PARENTS, CPU).scan([inputs[0] + 1, inputs[1]], leaky_sum)
    assert found.tolist() == [1, 2, 3, 4, 5, 5, 6, 3, 1, 2]
    found[8:].sum().backward()
    assert inputs.grad[0].tolist() == [0] * 8 + [2, 1]
