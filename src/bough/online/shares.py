"""A batch in shares, one per learner process, of nearly equal numbers of tokens.

A group is a token tree. Where it is larger than a process's fair share it is cut into subtrees
that repeat only their path from the root; then the largest tree goes to the process with the
fewest tokens so far. Losses and gradients are sums over calls, so only rounding depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bough.methods.grpo import GroupExample
from bough.policy.processes import deal
from bough.trees.partition import partition


@dataclass(frozen=True)
class _Piece:
    """A group, or some of its calls, and how many tokens they are as a tree."""

    example: GroupExample
    num_tokens: int


def shares(examples: Sequence[GroupExample], count: int) -> list[list[GroupExample]]:
    """The examples dealt out to `count` processes, each share in the order of the batch."""
    pieces = [piece for example in examples for piece in _pieces(example, None)]
    fair = -(-sum(piece.num_tokens for piece in pieces) // count)
    if any(piece.num_tokens > fair for piece in pieces):
        pieces = [
            part for piece in pieces for part in (_pieces(piece.example, fair) if piece.num_tokens > fair else [piece])
        ]
    dealt = deal([piece.num_tokens for piece in pieces], count)
    return [[pieces[i].example for i in share] for share in dealt]


def _pieces(example: GroupExample, budget: int | None) -> list[_Piece]:
    """The example in pieces of at most `budget` tokens, as far as single calls allow it."""
    everything = sum(len(call.prompt_ids) + len(call.completion_ids) for call in example.calls)
    parts = partition(example.calls, budget or everything)
    if len(parts) <= 1:
        return [_Piece(example, sum(part.num_tokens for part in parts))]
    return [
        _Piece(_some(example, sorted(part.calls), first=number == 0), part.num_tokens)
        for number, part in enumerate(parts)
    ]


def _some(example: GroupExample, chosen: list[int], *, first: bool) -> GroupExample:
    """Some of the calls. The first piece of a group has its denominator: what pieces add to a step's must add up."""
    old = example.old_logprobs
    return replace(
        example,
        calls=[example.calls[c] for c in chosen],
        advantages=tuple(example.advantages[c] for c in chosen),
        weights=tuple(example.weights[c] for c in chosen),
        old_logprobs=tuple(old[c] for c in chosen) if old else (),
        denominator=example.denominator if first else 0.0,
    )
