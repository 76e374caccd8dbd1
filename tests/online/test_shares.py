"""Groups dealt out to learners by their tokens, the large ones in pieces."""

import torch

from bough.online.method import GroupExample
from bough.online.source import shares
from bough.trees.build import TokenTree
from bough.types import Call


def group(first: int, *lengths: int) -> GroupExample:
    """Calls with a common prompt of four tokens and answers of these lengths, which differ from their first token."""
    prompt = [first] * 4
    calls = [Call(prompt_ids=prompt, completion_ids=[100 + c] * length) for c, length in enumerate(lengths)]
    return GroupExample(
        calls=calls,
        advantages=tuple(float(c) for c in range(len(calls))),
        weights=tuple(c + 0.5 for c in range(len(calls))),
        old_logprobs=tuple(torch.full((length,), float(c)) for c, length in enumerate(lengths)),
        denominator=float(sum(lengths)),
    )


def tokens(share: list[GroupExample]) -> int:
    return sum(len(TokenTree.of(example.calls)) for example in share)


def test_whole_groups_are_dealt_out_by_the_tokens_of_their_trees():
    groups = [group(1, 3, 3), group(2, 2, 2), group(3, 9), group(4, 5)]
    # 3 prompt tokens, the last of which predicts, then answers without their last token: 8, 6, 12 and 8 nodes.
    assert [tokens([one]) for one in groups] == [8, 6, 12, 8]
    assert shares(groups, 2) == [[groups[1], groups[2]], [groups[0], groups[3]]]


def test_a_group_larger_than_a_fair_share_is_cut_and_keeps_its_numbers():
    large, small = group(1, 9, 9, 9, 9), group(2, 2)
    first, second = shares([large, small], 2)
    assert abs(tokens(first) - tokens(second)) <= 12
    pieces = [one for share in (first, second) for one in share if one.calls[0].prompt_ids == [1] * 4]
    assert len(pieces) > 1
    found = sorted(
        (call.completion_ids[0], advantage, weight, float(old[0]))
        for one in pieces
        for call, advantage, weight, old in zip(one.calls, one.advantages, one.weights, one.old_logprobs, strict=True)
    )
    assert found == [(100 + c, float(c), c + 0.5, float(c)) for c in range(4)]
    assert sum(one.denominator for one in pieces) == large.denominator


def test_one_process_gets_everything():
    groups = [group(1, 3, 3), group(2, 2, 2)]
    assert shares(groups, 1) == [groups]


def test_a_group_whose_calls_answered_nothing_is_dealt_out_too():
    empty = group(1, 0)
    assert shares([empty, group(2, 3)], 2)[1] == [empty]
