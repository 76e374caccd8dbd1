"""SFT: trajectories as demonstrations, one weight a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bough.calls.builder import CallBuilder
from bough.config.training import SFTConfig
from bough.errors import RowError
from bough.formats.base import Sample
from bough.objectives.base import Loss
from bough.objectives.sft import sft_loss, step_weights
from bough.rewards.score import score
from bough.stages.examples import CallSource, Examples, by_difficulty, head_of, read_examples
from bough.training.objective import Example
from bough.types import Trajectory


@dataclass(frozen=True)
class Demonstration(Example):
    """The calls of a trajectory, each with the weight of its tokens."""

    weights: tuple[float, ...] = ()
    reward: float | None = None


class SFTObjective:
    """Weighted negative log-likelihood per token; every call is a part of its own."""

    needs_reference = False

    def parts(self, example: Demonstration) -> list[Demonstration]:
        return [replace(example, calls=[c], weights=(w,)) for c, w in zip(example.calls, example.weights, strict=True)]

    def amount(self, example: Demonstration) -> float:
        return sum(w * len(call.completion_ids) for call, w in zip(example.calls, example.weights, strict=True))

    def loss(
        self,
        parts: Sequence[Demonstration],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,  # noqa: ARG002  demonstrations are compared with nothing
        denominator: float,
    ) -> Loss:
        weights = [torch.full_like(found[0], part.weights[0]) for part, found in zip(parts, logprobs, strict=True)]
        return sft_loss(torch.cat([found[0] for found in logprobs]), torch.cat(weights), denominator=denominator)


def demonstrations(config: SFTConfig, builder: CallBuilder, held_out: bool = False) -> Examples[Demonstration]:
    """The demonstrations of the training file, or of the held-out one."""

    def make(sample: Sample, source: CallSource) -> Demonstration:
        if not isinstance(sample, Trajectory):
            raise RowError("wrong_kind", f"this is a {type(sample).__name__.lower()}; SFT learns from trajectories")
        return _demonstration(sample, source, config.step_weighted_loss)

    file = config.eval_file if held_out else config.train_file
    assert file is not None
    found = read_examples(file, config, builder, make)
    found.examples = by_difficulty(found.examples, [example.reward for example in found.examples])
    return found


def _demonstration(trajectory: Trajectory, source: CallSource, weighted: bool) -> Demonstration:
    calls = source.calls(trajectory.start, trajectory.turns, trajectory.tools)
    weights = step_weights([turn.reward for turn in trajectory.turns]) if weighted else [1.0] * len(trajectory.turns)
    trained = {t: call for t, call in calls.items() if weights[t] > 0}
    if not trained:
        raise RowError("nothing_to_train", "no reply of this trajectory can be trained")
    return Demonstration(
        calls=list(trained.values()),
        cluster=head_of(trajectory.start),
        weights=tuple(weights[t] for t in trained),
        reward=score(trajectory),
    )
