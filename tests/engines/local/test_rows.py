from types import SimpleNamespace

import pytest
import torch

from bough.engines.local.rows import RowsCache, batches
from bough.engines.local.schedule import Resident, Span
from bough.trees.mixers import Sight


def expected(query_HD, keys_LGD, values_LGD, scaling, softcap, first):
    """One token's attention, head by head, to the keys from `first` on."""
    outs = []
    for h, query_D in enumerate(query_HD):
        group = h * keys_LGD.shape[1] // len(query_HD)
        scores_L = keys_LGD[first:, group] @ query_D * scaling
        if softcap:
            scores_L = (scores_L / softcap).tanh() * softcap
        outs.append(scores_L.softmax(0) @ values_LGD[first:, group])
    return torch.stack(outs)


@pytest.mark.parametrize(
    ("sight", "softcap", "first"),
    [
        (Sight(), None, lambda p: 0),
        (Sight(window=3), None, lambda p: max(p - 2, 0)),
        (Sight(chunk=4), None, lambda p: p // 4 * 4),
        (Sight(), 2.0, lambda p: 0),
    ],
)
def test_tokens_of_several_episodes_see_their_own_row_up_to_themselves(sight, softcap, first):
    torch.manual_seed(0)
    kv = torch.randn(2, 2, 3, 12, 2, 8)  # 2 layers, 3 rows of 12 tokens, 2 heads of size 8
    before = kv.clone()
    # Two tokens behind the 5 of row 2, and three that are the first of row 0.
    position, row = torch.tensor([5, 6, 0, 1, 2]), torch.tensor([2, 2, 0, 0, 0])
    query, keys, values = torch.randn(5, 4, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    rows, ends, starts = torch.tensor([2, 0]), torch.tensor([7, 3]), torch.tensor([0, 2, 5], dtype=torch.int32)
    reader = SimpleNamespace(sights=[Sight(), sight])
    runner = SimpleNamespace(store=SimpleNamespace(kv=kv), flash=False, reader=reader)
    cache = RowsCache(runner, position, row, rows, ends, starts, 3)
    layer, _ = cache.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], 1)
    out = layer.attend(query.transpose(0, 1)[None], 0.3, softcap, None)[0]
    for t in range(5):
        assert torch.equal(kv[1, 0, row[t], position[t]], keys[t])
        assert torch.equal(kv[1, 1, row[t], position[t]], values[t])
        seen = int(position[t]) + 1
        mine = kv[1, :, row[t], :seen]
        wanted = expected(query[t], mine[0], mine[1], 0.3, softcap, first(int(position[t])))
        assert (out[t] - wanted).abs().max() < 1e-5
    assert torch.equal(kv[0], before[0])
    kv[1, :, row, position] = before[1, :, row, position]
    assert torch.equal(kv, before)


def test_prompts_are_read_together_up_to_a_number_of_tokens():
    spans = [Span(Resident(), [0] * size, False) for size in (10_000, 6_000, 1_000, 20_000, 5)]
    assert [[len(span.tokens) for span in batch] for batch in batches(spans)] == [
        [10_000, 6_000],
        [1_000],
        [20_000],
        [5],
    ]
