from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import scaled_dot_product_attention

from bough.trees import attend
from bough.trees.attend import BLOCK, block_mask, dense_mask, flex_tree_attention, sdpa_tree_attention
from bough.trees.build import TokenTree
from bough.trees.mixers import Sight
from tests.trees.samples import call

SIGHTS = [Sight(), Sight(window=100), Sight(window=1), Sight(chunk=64), Sight(chunk=300)]


def random_row(seed: int, blocks: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """`end` and `position` of a random tree of a few hundred tokens, padded to whole blocks."""
    rng = np.random.default_rng(seed)
    trunk = rng.integers(0, 50, 400).tolist()
    starts = rng.integers(1, 400, 8).tolist() if seed % 3 else [390] * 4  # bushy trees, and long trunks
    calls = [call(trunk[:start], rng.integers(0, 50, 40).tolist()) for start in starts]
    calls.append(call(rng.integers(50, 99, 20).tolist(), [1]))
    tree = TokenTree.of(calls)
    end, position = np.arange(1, blocks * BLOCK + 1), np.zeros(blocks * BLOCK, np.int64)
    end[: len(tree)], position[: len(tree)] = tree.end, tree.position
    return torch.from_numpy(end), torch.from_numpy(position)


def expanded(mask) -> torch.Tensor:
    """Token by token what a BlockMask says: all of its full blocks, and `mask_mod` inside its partial ones."""
    length = mask.seq_lengths[0]
    index = torch.arange(length)
    inside = mask.mask_mod(None, None, index[:, None], index[None, :])
    sees = torch.zeros(length, length, dtype=torch.bool)
    for q in range(length // BLOCK):
        rows = slice(q * BLOCK, (q + 1) * BLOCK)
        for k in mask.kv_indices[0, 0, q, : mask.kv_num_blocks[0, 0, q]].tolist():
            sees[rows, k * BLOCK : (k + 1) * BLOCK] = inside[rows, k * BLOCK : (k + 1) * BLOCK]
        for k in mask.full_kv_indices[0, 0, q, : mask.full_kv_num_blocks[0, 0, q]].tolist():
            sees[rows, k * BLOCK : (k + 1) * BLOCK] = True
    return sees


def test_a_dense_mask_opens_exactly_the_path():
    tree = TokenTree.of([call([1, 2], [3, 4, 9]), call([1, 2], [5, 9])])
    end, position = torch.from_numpy(tree.end), torch.from_numpy(tree.position)
    full = dense_mask(end, position, Sight(), torch.float32)[0, 0] == 0
    assert full.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]
    window = dense_mask(end, position, Sight(window=2), torch.float32)[0, 0] == 0
    assert window.int().tolist()[-1] == [0, 1, 0, 0, 1]
    chunk = dense_mask(end, position, Sight(chunk=2), torch.float32)[0, 0] == 0
    assert chunk.int().tolist()[-2:] == [[0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("seed", range(6))
def test_a_block_mask_says_the_same_as_the_dense_one(seed, sight):
    end, position = random_row(seed)
    dense = dense_mask(end, position, sight, torch.float32)[0, 0] == 0
    assert torch.equal(expanded(block_mask(end, position, sight)), dense)


def listed(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """A list of blocks of keys for each block of queries as a table of true and false."""
    table = torch.zeros(indices.shape[2:], dtype=torch.bool)
    for q, count in enumerate(counts[0, 0].tolist()):
        table[q, indices[0, 0, q, :count].long()] = True
    return table


@pytest.mark.parametrize("seed", range(6))
def test_a_block_is_looked_into_only_if_it_is_seen_in_part(seed):
    """A kernel adds up what both lists name: a block in both would count twice."""
    end, position = random_row(seed)
    mask = block_mask(end, position, Sight())
    dense = dense_mask(end, position, Sight(), torch.float32)[0, 0] == 0
    blocks = dense.view(len(end) // BLOCK, BLOCK, len(end) // BLOCK, BLOCK).transpose(1, 2).flatten(2)
    assert torch.equal(listed(mask.full_kv_num_blocks, mask.full_kv_indices), blocks.all(-1))
    assert torch.equal(listed(mask.kv_num_blocks, mask.kv_indices), blocks.any(-1) & ~blocks.all(-1))


@pytest.mark.parametrize("sight", [Sight(), Sight(window=100)])
@pytest.mark.parametrize("heads", [2, 6])
def test_a_block_of_queries_at_a_time_gives_the_attention_of_the_whole_mask(sight, heads):
    end, position = random_row(1)
    query, key, value = (torch.randn(1, number, len(end), 16) for number in (6, heads, heads))
    mask = dense_mask(end, position, sight, torch.float32)
    found, _ = sdpa_tree_attention(torch.nn.Identity(), query, key, value, mask, 0.3)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(found, expected.transpose(1, 2))


@pytest.mark.parametrize(("sight", "heads"), [(Sight(), 2), (Sight(window=100), 2), (Sight(), 1), (Sight(), 6)])
def test_flex_attention_agrees_with_sdpa(sight, heads):
    """Also where all queries share one head of keys, as in Gemma's smallest, or each has its own."""
    end, position = random_row(1)
    query, key, value = (torch.randn(1, number, len(end), 16) for number in (6, heads, heads))
    with torch.compiler.set_stance("force_eager"), torch.no_grad():  # compiling takes a minute on a CPU
        found, _ = flex_tree_attention(torch.nn.Identity(), query, key, value, block_mask(end, position, sight), 0.3)
    mask = dense_mask(end, position, sight, torch.float32)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(found, expected.transpose(1, 2))


@pytest.mark.parametrize("sink", [False, True])
def test_scores_are_capped_and_a_sink_takes_its_part(sink):
    """By hand: the capped scores of the seen tokens, and one more that gives nothing back."""
    end, position = random_row(1)
    query, key, value = (3 * torch.randn(1, 2, len(end), 16) for _ in range(3))
    sinks = torch.tensor([0.5, -1.0]) if sink else None
    mask = block_mask(end, position, Sight())
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        found, _ = flex_tree_attention(torch.nn.Identity(), query, key, value, mask, 0.3, softcap=2.0, s_aux=sinks)
    scores = 2.0 * torch.tanh(0.3 * query @ key.mT / 2.0) + dense_mask(end, position, Sight(), torch.float32)
    more = torch.full((1, 2, len(end), 1), -torch.inf) if sinks is None else sinks[None, :, None, None]
    shares = torch.cat([scores, more.expand(1, 2, len(end), 1)], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(found, (shares @ value).transpose(1, 2))


def test_rows_of_any_length_are_compiled_for_once(monkeypatch):
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    attend._flex.cache_clear()
    for blocks in (6, 7, 9):
        end, position = random_row(1, blocks)
        states = [torch.randn(1, heads, len(end), 16) for heads in (6, 2, 2)]
        with torch.no_grad():
            flex_tree_attention(torch.nn.Identity(), *states, block_mask(end, position, Sight()), 0.3)
    attend._flex.cache_clear()
    assert counter.frame_count == 1
