import pytest
import torch

from bough.engines.local.rows import NONE, attend_rows


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
    ("window", "chunk", "softcap", "first"),
    [(NONE, NONE, 0.0, lambda p: 0), (3, NONE, 0.0, lambda p: max(p - 2, 0)), (NONE, 4, 0.0, lambda p: p // 4 * 4),
     (NONE, NONE, 2.0, lambda p: 0)],
)  # fmt: skip
def test_tokens_of_several_episodes_see_their_own_row_up_to_themselves(window, chunk, softcap, first):
    torch.manual_seed(0)
    kv = torch.randn(2, 2, 3, 12, 2, 8)  # 2 layers, 3 rows of 12 tokens, 2 heads of size 8
    before = kv.clone()
    # Two tokens behind the 5 of row 2, and three that are the first of row 0.
    position, row = torch.tensor([5, 6, 0, 1, 2]), torch.tensor([2, 2, 0, 0, 0])
    query, keys, values = torch.randn(5, 4, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    rows, ends, starts = torch.tensor([2, 0]), torch.tensor([7, 3]), torch.tensor([0, 2, 5], dtype=torch.int32)
    places = (position, row, rows, ends, starts, starts)
    out = attend_rows(query, keys, values, kv, 1, *places, 3, window, chunk, 0.3, softcap, False)
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
