"""Which attention rows are read with, and what of them is recorded."""

from typing import Any

import torch

from bough.policy.policy import RowReader
from bough.trees.build import plain_rows, tree_rows
from bough.types import Call
from tests.policy.families import make

CALLS = [
    Call(prompt_ids=[1, 2, 3], completion_ids=[4, 5, 9]),
    Call(prompt_ids=[1, 2, 3, 4], completion_ids=[6, 7, 8]),
]


def reader_of(family: str, **options: Any) -> RowReader:
    torch.manual_seed(0)
    return RowReader(make(family), **{"attention": "sdpa", "autocast": None, "device": None} | options)


@torch.no_grad()
def test_plain_rows_are_read_with_the_models_own_attention():
    reader = reader_of("llama")
    (tree,), (plain,) = tree_rows(CALLS, 100), plain_rows(CALLS, 100)
    used = []
    for row in (tree, plain, tree):
        reader(row)
        used.append(reader.decoder.config._attn_implementation)
    assert used == [reader.tree_attention, reader.plain_attention, reader.tree_attention]
    assert reader.tree_attention != reader.plain_attention


def test_recordings_are_told_who_reads_and_left_out_where_rows_wait_for_their_backward_pass():
    reader = reader_of("llama", attention="flex")
    (row,) = tree_rows(CALLS, 100)
    heard: list[Any] = []

    def recorded(token_L: torch.Tensor, _position_L: torch.Tensor, end_L: torch.Tensor, who: str) -> torch.Tensor:
        heard.append((token_L.tolist(), end_L.tolist(), who))
        return torch.zeros(len(token_L), 3)

    reader.recorded = recorded  # type: ignore[assignment]
    assert reader(row).shape == (256, 3)
    reader.who = "reference"
    reader(row)
    # Padding is a token that sees itself: a softmax over nothing is NaN.
    tokens, ends = [1, 2, 3, 4, 6, 7, 5] + [0] * 249, [7, 7, 7, 7, 6, 6, 7, *range(8, 257)]
    assert heard == [(tokens, ends, "policy"), (tokens, ends, "reference")]
    with torch.compiler.set_stance("force_eager"), torch.no_grad(), reader.unrecorded():
        assert reader(row).shape == (256, 64)
    assert len(heard) == 2 and reader.recorded is recorded
