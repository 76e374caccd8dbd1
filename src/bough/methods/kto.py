"""KTO, Kahneman-Tversky optimisation (2402.01306): single replies or episodes, each good or bad on its own.

A unit is desirable or undesirable. With g, its log-probability gained on the reference, and z, an
estimate of how far the policy is from the reference,

    desirable:    w_d · (1 − σ(β(g − z)))        undesirable:    w_u · (1 − σ(β(z − g)))

z is the mean of g over *mismatched* units, a prompt with another record's answer, at least 0 and
without a gradient, as in the paper and in TRL. The mismatched answer comes from the nearest
earlier record with another start. All units of an optimizer step, over all rows and processes, have one z.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bough.data.base import Sample
from bough.environments.rubric import score
from bough.errors import InputError, RowError
from bough.ledger import Mean
from bough.methods.dpo import DPOConfig, whole
from bough.training.method import (
    CallSource,
    Data,
    Example,
    Examples,
    LazyExamples,
    Loss,
    columns,
    float_vectors,
    head_of,
    share,
)
from bough.types import Call, Group, Pair

if TYPE_CHECKING:
    from torch import Tensor

    from bough.chat.template import CallBuilder


@dataclass(frozen=True)
class Judged(Example):
    """The calls of a desirable unit, then those of an undesirable one, then as many mismatched calls.

    A trajectory is one unit, by its success; a pair is both. `num_chosen` and `num_rejected` count
    their calls, 0 where there is no such unit.
    """

    num_chosen: int = 0
    num_rejected: int = 0
    reward: float | None = None

    @property
    def own(self) -> list[Call]:
        return self.calls[: self.num_chosen + self.num_rejected]


class KTO:
    """A unit is a part, with the mismatched calls that belong to it."""

    temperature = 1.0
    needs_reference = True

    def __init__(self, config: DPOConfig) -> None:
        self.config = config

    def examples(self, data: Data, builder: CallBuilder) -> Examples[Judged]:
        from bough.methods.examples import examples_from

        found = examples_from(data, self.config, builder, _judged, Judged, score="reward")
        if len(found.examples) < 2:
            raise InputError(f"{found.name}: KTO compares a reply with another record's; give two records or more")
        found.examples = Mismatched(found.examples, builder.max_length or builder.context)
        return found

    def parts(self, example: Judged) -> list[Judged]:
        chosen, rejected = example.num_chosen, example.num_rejected
        own, other = example.own, example.calls[chosen + rejected :]
        parts = [
            replace(example, calls=own[:chosen] + other[:chosen], num_rejected=0),
            replace(example, calls=own[chosen:] + other[chosen:], num_chosen=0),
        ]
        return [part for part in parts if part.calls]

    def amount(self, example: Judged) -> float:
        return float((example.num_chosen > 0) + (example.num_rejected > 0))

    def totals(
        self,
        parts: Sequence[Judged],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
    ) -> Tensor:
        """All units of a step share z: the sum of the mismatched units' gains, and their number."""
        counts = [len(part.own) for part in parts]
        # A process may have no part of a step; it still takes part in the totals over all processes.
        values = (logprobs, reference if reference is not None else [])
        return mismatched(*(_sums(each, counts, own=False) for each in values))

    def loss(
        self,
        parts: Sequence[Judged],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
        totals: Tensor | None = None,
    ) -> Loss:
        import torch

        config = self.config
        counts = [len(part.own) for part in parts]
        of_reference = reference if reference is not None else []
        policy_U, reference_U = (_sums(values, counts, own=True) for values in (logprobs, of_reference))
        totals = self.totals(parts, logprobs, reference) if totals is None else totals
        return kto_loss(
            policy_U,
            reference_U,
            torch.tensor([part.num_chosen > 0 for part in parts], dtype=torch.bool, device=policy_U.device),
            kl=divergence(totals.to(policy_U.device)),
            denominator=denominator,
            beta=config.beta,
            desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )


def mismatched(other_U: Tensor, other_reference_U: Tensor) -> Tensor:
    """The sum of the gains of mismatched units and their number, without a gradient."""
    import torch

    gains_U = (other_U.float() - other_reference_U.float()).detach()
    return torch.stack([gains_U.sum(), gains_U.new_tensor(float(len(gains_U)))])


def divergence(totals: Tensor) -> Tensor:
    """z: the mean gain of mismatched units, at least 0."""
    return (totals[0] / totals[1].clamp(min=1)).clamp(min=0)


def kto_loss(
    policy_U: Tensor,
    reference_U: Tensor,
    desirable_U: Tensor,
    *,
    kl: Tensor,
    denominator: float,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Loss:
    """Σ over U units of their weighted loss / `denominator`, the number of units of the whole optimizer step.

    `policy_U` and `reference_U` are log-probabilities summed over a unit's trained tokens,
    `desirable_U` says which units are good, `kl` is z.

    Metrics: `preference_loss`, `accuracy` (units on their side of z), `chosen_reward`,
    `rejected_reward` (β times the gain), `chosen_logprob`, `rejected_logprob`, `kl`.
    """
    import torch

    policy_U, reference_U = float_vectors(policy_U, reference_U)
    gain_U = policy_U - reference_U.detach()
    side_U = torch.where(desirable_U, 1.0, -1.0)
    weight_U = torch.where(desirable_U, desirable_weight, undesirable_weight)
    loss_U = weight_U * torch.sigmoid(-beta * side_U * (gain_U - kl))
    every_U = torch.ones_like(desirable_U)
    metrics = {
        "preference_loss": Mean.over(loss_U, every_U),
        "accuracy": Mean.over((side_U * (gain_U - kl) > 0).float(), every_U),
        "chosen_reward": Mean.over(beta * gain_U, desirable_U),
        "rejected_reward": Mean.over(beta * gain_U, ~desirable_U),
        "chosen_logprob": Mean.over(policy_U, desirable_U),
        "rejected_logprob": Mean.over(policy_U, ~desirable_U),
        "kl": Mean.over(kl.expand_as(gain_U), every_U),
    }
    return Loss(share(loss_U.sum(), denominator), metrics)


class Mismatched(LazyExamples[Judged]):
    """Examples with mismatched calls: the prompts of each with the answers of another."""

    def __init__(self, examples: Sequence[Judged], longest: int | None) -> None:
        self._examples, self._longest = examples, longest
        self.clusters, self.difficulties = columns(examples)
        self.partners = partners(self.clusters)

    def at(self, index: int) -> Judged:
        example, answers = self._examples[index], self._examples[self.partners[index]].calls
        other = []
        for c, call in enumerate(example.calls):
            # Cut to the model's context: it is not trained, only measured.
            room = None if self._longest is None else max(1, self._longest - len(call.prompt_ids))
            answer = answers[c % len(answers)].completion_ids[:room]
            other.append(Call.model_construct(prompt_ids=call.prompt_ids, completion_ids=answer))
        return replace(example, calls=example.calls + other)


def partners(clusters: Sequence[Hashable]) -> list[int]:
    """For each example the nearest one before it that starts differently, in a circle; where all start alike, the last.

    Attempts at one task stand next to each other, and an answer to the same prompt is not mismatched.
    """
    last = len(clusters) - 1
    before_first = next((i for i in range(last, -1, -1) if clusters[i] != clusters[0]), None)
    if before_first is None:
        return [last, *range(last)]
    found = [before_first]
    for i in range(1, len(clusters)):
        found.append(i - 1 if clusters[i - 1] != clusters[i] else found[-1])
    return found


def _judged(sample: Sample, source: CallSource) -> Judged:
    if isinstance(sample, Group):
        raise RowError("wrong_kind", "this is a group; KTO learns from trajectories with a success, or from pairs")
    cluster = head_of(sample.start)
    if isinstance(sample, Pair):
        sides = [(turns, source.calls(sample.start, turns, sample.tools)) for turns in (sample.chosen, sample.rejected)]
        chosen, rejected = (whole(turns, calls) for turns, calls in sides)
        return Judged(chosen + rejected, "", cluster, num_chosen=len(chosen), num_rejected=len(rejected))
    if sample.success is None:
        others = f"; its other columns are {', '.join(map(repr, sample.info))}" if sample.info else ""
        raise RowError("no_label", f"KTO needs a label or a success, and the row has neither{others}")
    calls = whole(sample.turns, source.calls(sample.start, sample.turns, sample.tools))
    number = {"num_chosen" if sample.success else "num_rejected": len(calls)}
    return Judged(calls, "", cluster, reward=score(sample), **number)


def _sums(values: Sequence[Sequence[Tensor]], counts: Sequence[int], *, own: bool) -> Tensor:
    """The log-probabilities of each unit's own or mismatched calls, summed."""
    import torch

    if not values:
        return torch.zeros(0)
    chosen = [of_part[:count] if own else of_part[count:] for of_part, count in zip(values, counts, strict=True)]
    return torch.stack([torch.cat(list(tokens)).sum() for tokens in chosen])
