"""Rows are read alike whatever they are laid out as, and padding and recordings change no hidden state."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from bough.policy.policy import RowReader
from bough.trees.pack import plain_rows, tree_rows
from bough.types import Call
from tests.policy.families import make

CALLS = [
    Call(prompt_ids=[1, 2, 3], completion_ids=[4, 5, 9]),
    Call(prompt_ids=[1, 2, 3, 4], completion_ids=[6, 7, 8]),
]


def reader_of(family: str, **options: Any) -> RowReader:
    torch.manual_seed(0)
    return RowReader(make(family), **{"attention": "sdpa", "autocast": None, "device": None} | options)


def predictors(reader: RowReader, row: Any) -> dict[tuple[int, int], torch.Tensor]:
    """Of each call and each token that it answered, the hidden state that predicts the token."""
    hidden_ND = reader(row)[row.predictors_M][row.index_N]
    places = [(c, n) for c, length in zip(row.calls, row.lengths, strict=True) for n in range(length)]
    return dict(zip(places, hidden_ND, strict=True))


@pytest.mark.parametrize("family", ["llama", "gemma3", "lfm2"])
@torch.no_grad()
def test_a_tree_and_calls_side_by_side_have_the_same_hidden_states(family: str):
    reader = reader_of(family)
    (tree,), (plain,) = tree_rows(CALLS, 100), plain_rows(CALLS, 100)
    found, expected = predictors(reader, tree), predictors(reader, plain)
    assert found.keys() == expected.keys() and len(found) == 6
    for place, hidden_D in expected.items():
        torch.testing.assert_close(found[place], hidden_D, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_flex_attention_reads_a_tree_with_padding_after_it():
    (row,) = tree_rows(CALLS, 100)
    expected = reader_of("llama")(row)
    with torch.compiler.set_stance("force_eager"):
        found = reader_of("llama", attention="flex")(row)
    assert (len(expected), len(found)) == (7, 256)
    torch.testing.assert_close(found[:7], expected)


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


def test_a_model_with_an_obstacle_has_no_sights():
    reader = reader_of("llama")
    assert list(reader.sights) == ["full_attention"]
    reader.obstacle = "it fails on a tree"
    assert reader.sights == {}


def test_free_memory_drops_the_recordings():
    reader = reader_of("llama")
    reader.free_memory()
    assert not reader.has_recordings
    reader.record()
    assert reader.recorded is not None and not reader.has_recordings
    reader.recorded.recordings[256, "policy", True] = Mock()
    assert reader.has_recordings
    reader.free_memory()
    assert not reader.recorded.recordings


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
