"""How the tokens of sequences average into one loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Averaging = Literal["token_mean", "sequence_mean", "constant_length"]


class Aggregation(NamedTuple):
    """A weight for every token of each sequence, and these sequences' share of the denominator."""

    weights: list[float]
    denominator: float


def aggregation_weights(
    lengths: Sequence[int], how: Averaging = "token_mean", *, constant_length: int | None = None
) -> Aggregation:
    """How the tokens of sequences average into one loss: weights, and what to divide by.

    `lengths` are trained tokens per sequence; a sequence is a whole trajectory, however
    many calls it has. A sequence without tokens counts nowhere.

    | how             | a token's weight    | share of the denominator | paper                |
    |-----------------|---------------------|--------------------------|----------------------|
    | token_mean      | 1                   | Σ lengths                | DAPO, 2503.14476     |
    | sequence_mean   | 1 / its length      | number of sequences      | GRPO, 2402.03300     |
    | constant_length | 1 / constant_length | number of sequences      | Dr. GRPO, 2503.20783 |

    Shares add up over micro-batches and ranks to the one denominator that `grpo_loss` takes.
    """
    num_sequences = sum(length > 0 for length in lengths)
    if how == "token_mean":
        return Aggregation([1.0] * len(lengths), float(sum(lengths)))
    if how == "sequence_mean":
        return Aggregation([1 / max(length, 1) for length in lengths], float(num_sequences))
    assert constant_length is not None, "the settings ask for a length"
    return Aggregation([1 / constant_length] * len(lengths), float(num_sequences))
