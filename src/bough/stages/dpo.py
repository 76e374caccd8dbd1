"""DPO: pairs of units with the same start; a unit's log-probability is the sum over its calls' answered tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bough.calls.builder import CallBuilder
from bough.config.training import DPOConfig
from bough.errors import RowError
from bough.formats.base import Sample
from bough.objectives.base import Loss
from bough.objectives.dpo import Sides, dpo_loss
from bough.stages.examples import CallSource, Examples, by_difficulty, head_of, read_examples
from bough.training.objective import Example
from bough.types import Call, Pair, Turn


@dataclass(frozen=True)
class Preference(Example):
    """The calls of the chosen side, `num_chosen` of them, then those of the rejected side."""

    num_chosen: int = 0
    reason: str | None = None
    margin: float | None = None


class DPOObjective:
    """A pair is one part: its loss needs both sides at once."""

    def __init__(self, config: DPOConfig) -> None:
        self.config = config
        self.needs_reference = config.loss_type != "simpo"

    def parts(self, example: Preference) -> list[Preference]:
        return [example]

    def amount(self, example: Preference) -> float:  # noqa: ARG002  every pair counts the same
        return 1.0

    def loss(
        self,
        parts: Sequence[Preference],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
    ) -> Loss:
        config = self.config
        return dpo_loss(
            _sides(parts, logprobs),
            _sides(parts, reference) if reference is not None else None,
            _lengths(parts, logprobs[0][0].device),
            denominator=denominator,
            loss_type=config.loss_type,
            beta=config.beta,
            label_smoothing=config.label_smoothing,
            gamma=config.gamma,
            nll_alpha=config.nll_alpha,
            reasons=[part.reason for part in parts],
        )


def preferences(config: DPOConfig, builder: CallBuilder, held_out: bool = False) -> Examples[Preference]:
    """The pairs of the training file, or of the held-out one."""

    def make(sample: Sample, source: CallSource) -> Preference:
        if not isinstance(sample, Pair):
            raise RowError("wrong_kind", f"this is a {type(sample).__name__.lower()}; DPO learns from pairs")
        return _preference(sample, source)

    file = config.eval_file if held_out else config.train_file
    assert file is not None
    found = read_examples(file, config, builder, make)
    found.examples = by_difficulty(found.examples, [example.margin for example in found.examples])
    return found


def _preference(pair: Pair, source: CallSource) -> Preference:
    sides = [(turns, source.calls(pair.start, turns, pair.tools)) for turns in (pair.chosen, pair.rejected)]
    chosen, rejected = (_whole(turns, calls) for turns, calls in sides)
    return Preference(
        calls=chosen + rejected,
        cluster=head_of(pair.start),
        num_chosen=len(chosen),
        reason=pair.reason,
        margin=pair.margin,
    )


def _whole(turns: list[Turn], calls: dict[int, Call]) -> list[Call]:
    """All calls of one side: half a side would be compared with a whole one."""
    if not calls or len(calls) < sum(turn.trained for turn in turns):
        raise RowError("side_incomplete", "a call of the pair cannot be trained, so its sides cannot be compared")
    return list(calls.values())


def _sides(parts: Sequence[Preference], values: Sequence[Sequence[Tensor]]) -> Sides:
    """Log-probabilities summed over each side, in one operation for all pairs: thousands of small ones take time."""
    owner = [
        2 * p + (c >= part.num_chosen)
        for p, (part, of_part) in enumerate(zip(parts, values, strict=True))
        for c, tokens in enumerate(of_part)
        for _ in range(len(tokens))
    ]
    flat_N = torch.cat([tokens for of_part in values for tokens in of_part])
    sums = flat_N.new_zeros(2 * len(parts)).index_add(0, torch.tensor(owner, device=flat_N.device), flat_N)
    return Sides(sums[0::2], sums[1::2])


def _lengths(parts: Sequence[Preference], device: torch.device) -> Sides:
    def count(calls: list[Call]) -> float:
        return float(sum(len(call.completion_ids) for call in calls))

    chosen = torch.tensor([count(part.calls[: part.num_chosen]) for part in parts], device=device)
    return Sides(chosen, torch.tensor([count(part.calls[part.num_chosen :]) for part in parts], device=device))
