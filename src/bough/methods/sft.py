"""SFT, supervised fine-tuning: the model learns to answer as the trajectories did.

Each call has a weight; the loss is the weighted negative log-likelihood of the answered tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from bough.config.keywords import settings_of
from bough.config.training import TrainingConfig
from bough.data.base import Sample
from bough.data.trl import LABEL
from bough.environments.rubric import score
from bough.errors import RowError
from bough.ledger import Mean
from bough.methods.base import train_on_data, trained_model, training_command
from bough.training.method import CallSource, Data, Example, Examples, Loss, float_vectors, head_of, share
from bough.types import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from bough.chat.template import CallBuilder
    from bough.commands.models import ModelLike, TrainedModel
    from bough.commands.objects import Source, StrPath
    from bough.training.run import Trained


class SFTConfig(TrainingConfig):
    """Supervised fine-tuning: the model learns to reply as in the demonstrations; only replies are trained, never
    observations.
    """

    command = "sft"

    step_weighted_loss: bool = Field(
        False,
        description="weight each reply by its step reward divided by the trajectory's mean (negative counts as 0)",
    )


@dataclass(frozen=True)
class Demonstration(Example):
    """The calls of a trajectory, each with the weight of its tokens."""

    weights: tuple[float, ...] = ()
    reward: float | None = None


class SFT:
    """Weighted negative log-likelihood per token; every call is a part of its own."""

    needs_reference = False
    temperature = 1.0

    def __init__(self, config: SFTConfig) -> None:
        self.config = config

    def examples(self, data: Data, builder: CallBuilder) -> Examples[Demonstration]:
        from bough.methods.examples import examples_from

        return examples_from(
            data, self.config, builder, self._example, Demonstration,
            score="reward", depends_on=("step_weighted_loss",),
        )  # fmt: skip

    def parts(self, example: Demonstration) -> list[Demonstration]:
        return [replace(example, calls=[c], weights=(w,)) for c, w in zip(example.calls, example.weights, strict=True)]

    def amount(self, example: Demonstration) -> float:
        return sum(w * len(call.completion_ids) for call, w in zip(example.calls, example.weights, strict=True))

    def loss(
        self,
        parts: Sequence[Demonstration],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,  # noqa: ARG002  SFT has no reference
        denominator: float,
    ) -> Loss:
        import torch

        from bough.trees.build import to_device

        logprobs_N = torch.cat([found[0] for found in logprobs])
        # Made here and copied once: on a GPU, a kernel for each part would take longer.
        lengths = torch.tensor([len(found[0]) for found in logprobs])
        weights_N = torch.tensor([part.weights[0] for part in parts]).repeat_interleave(lengths)
        return sft_loss(logprobs_N, to_device(weights_N, logprobs_N.device), denominator=denominator)

    def _example(self, sample: Sample, source: CallSource) -> Demonstration:
        if not isinstance(sample, Trajectory):
            kind = type(sample).__name__.lower()
            raise RowError("wrong_kind", f"this is a {kind}; SFT learns from trajectories (see bough demos --help)")
        if sample.rewards.get(LABEL) == 0:
            raise RowError("undesirable", "this reply is labelled as bad; SFT would imitate it")
        calls = source.calls(sample.start, sample.turns, sample.tools, corrections=True)
        weights = [1.0] * len(sample.turns)
        if self.config.step_weighted_loss:
            # A correction was not tried, so it has no reward.
            weights = step_weights([None if turn.correction is not None else turn.reward for turn in sample.turns])
        trained = {t: call for t, call in calls.items() if weights[t] > 0}
        if not trained:
            raise RowError("nothing_to_train", "no reply of this trajectory can be trained")
        return Demonstration(
            calls=list(trained.values()),
            cluster=head_of(sample.start),
            weights=tuple(weights[t] for t in trained),
            reward=score(sample),
        )


def sft_loss(logprobs_N: Tensor, weights_N: Tensor, *, denominator: float) -> Loss:
    """−Σ w·log π / `denominator`, over the N trained tokens of a micro-batch.

    Shapes: both [N], one entry per trained token; a token's weight is its step's.
    `denominator` is the sum of the weights of the whole optimizer step, over all
    micro-batches and ranks (the number of tokens where every weight is 1), so that the
    loss is a weighted mean and every token weighs the same wherever it lands.

    Metrics: `nll`, unweighted, over tokens of positive weight; `weight`, over all tokens.
    """
    logprobs_N, weights_N = float_vectors(logprobs_N, weights_N)
    metrics = {
        "nll": Mean.over(-logprobs_N, weights_N > 0),
        "weight": Mean(weights_N.detach().sum(), len(weights_N)),
    }
    return Loss(share(-(weights_N * logprobs_N).sum(), denominator), metrics)


def step_weights(rewards: Sequence[float | None]) -> list[float]:
    """Weights for one trajectory's steps: step reward / mean step reward, never negative.

    With r⁺ = max(r, 0):  w_j = r⁺_j / mean(r⁺), the mean taken over the scored steps
    (knowlyr-trainer's step weights, made safe for rewards of any sign).

    - The weights average 1, so a weighted trajectory counts as much as an unweighted one;
      each lies in [0, number of scored steps]; equal rewards give 1; the unit of the
      rewards does not matter.
    - A negative reward counts as 0: its step is not imitated. A negative weight would turn
      cross-entropy into a reward for any other answer, without a floor.
    - None (not scored) weighs 1, and stays out of the mean.
    - Where no scored reward is positive there is nothing to prefer, and all weigh 1.
      Weights order the steps of a trajectory; whether to imitate it at all is curation's choice.
    """
    gains = [None if reward is None else max(reward, 0.0) for reward in rewards]
    scored = [gain for gain in gains if gain is not None]
    largest = max(scored, default=0.0)
    if largest == 0:
        return [1.0] * len(gains)
    # In units of a power of two near the largest reward: exact, and no mean overflows or vanishes.
    _, exponent = math.frexp(largest)
    centre = mean(math.ldexp(gain, -exponent) for gain in scored)
    return [1.0 if gain is None else math.ldexp(gain, -exponent) / centre for gain in gains]


# The command: `bough sft`, `bough.sft`.


def train_sft(config: SFTConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Supervised fine-tuning on trajectories: those of the settings' files, or the data given here."""
    return train_on_data(SFT, config, data, held_out)


@settings_of(SFTConfig, "train_file")
def sft(
    model: ModelLike,
    records: Source,
    *,
    eval_file: Source | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train a model to answer as the trajectories did.

    `model` is a name, a folder, a trained or a loaded model. `records` are trajectories in
    memory, or the path of a file or folder in any format that `bough data formats` lists;
    `eval_file` are held-out ones, whose loss is measured during training.

    The run folder is `output_dir`. Without it the weights are in a temporary folder that is
    removed with the returned object; its `save` copies them.
    """
    return trained_model(SFTConfig, train_sft, model, records, eval_file, output_dir, settings)


COMMANDS = {
    "sft": training_command(
        SFTConfig,
        train=train_sft,
        essential=("step_weighted_loss", "eval_steps", "early_stopping_patience", "curriculum", "lora_dropout"),
        reads="demonstrations",
        examples="  bough sft --train-file sft.jsonl --model smollm2 --output-dir runs/sft\n"
        "  bough sft --config train.yaml --learning-rate 1e-5",
    )
}
