"""Distillation: the student learns a teacher's distribution on the tokens that the student itself sampled.

Each answered token has a divergence from the teacher; the loss is its mean. Where the teacher
is a server, only the log-probabilities of the sampled tokens are known, and the reverse KL is
estimated from those.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from bough.config.groups import (
    RewardWeights,
    SamplingConfig,
    is_server,
)
from bough.config.keywords import settings_of
from bough.config.online import OnlineConfig, RolloutsConfig
from bough.config.problems import named
from bough.config.training import OF_FILES, OptimizerConfig, TrainingDataConfig, learning_rate_field
from bough.data.base import Sample
from bough.errors import InputError, RowError
from bough.ledger import Mean
from bough.methods.base import ESSENTIAL_ONLINE, trained_model, training_command
from bough.methods.examples import examples_from, head_of
from bough.methods.grpo import bounded_exp, sampler_logprobs
from bough.online.method import FlatKind, GroupExample
from bough.training.method import CallSource, Data, Examples, Loss, float_vectors, share
from bough.types import Call, Group, Pair, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from bough.chat.builder import CallBuilder
    from bough.commands.models import ModelLike, TrainedModel
    from bough.commands.objects import AgentLike, EnvironmentLike, Rewards, Source, StrPath
    from bough.training.run import Trained


class DistillDataConfig(TrainingDataConfig):
    """Training data."""

    train_file: Path | None = Field(  # type: ignore[assignment]  # the others must have one
        None, description="episodes of the student, or groups of them; or give --environment to sample them"
    )


class DistillOptimizerConfig(OptimizerConfig):
    """Optimizer and number of steps."""

    learning_rate: float = learning_rate_field(lora=1e-4, full=1e-5)
    num_epochs: float = Field(1, gt=0, description="number of passes over the data")


class DistillRolloutsConfig(RolloutsConfig):
    """Episodes of the student, and how often each is trained on."""

    group_size: int = Field(1, ge=1, description="attempts at each task; batch_size is the number of tasks per batch")
    updates: int = Field(1, ge=1, description="optimizer steps per batch: mini-batches")
    passes: int = Field(1, ge=1, description="passes over each batch")
    resample: float = Field(
        2.0, ge=1, description="limit on the tasks tried to fill a batch if episodes are lost, in batch sizes"
    )


class DistillConfig(OnlineConfig):
    """On-policy distillation: the student plays, and learns a teacher's distribution over each token it sampled."""

    command = "distill"

    teacher: str = Field(
        description="the model to learn from, with the student's tokenizer; or the address of a server that returns "
        "log-probabilities of a prompt, such as vLLM"
    )
    beta: float = Field(
        1.0,
        ge=0,
        le=1,
        description="the divergence: 1 reverse KL, 0 forward KL, between them generalised Jensen-Shannon (GKD)",
    )
    server_model: str = Field("", description="name of the model on the server (default: the only one it has)")
    key_variable: str = Field(
        "OPENAI_API_KEY", description="the environment variable that contains the API key; the key is never stored"
    )
    data: DistillDataConfig = DistillDataConfig()
    optimizer: DistillOptimizerConfig = DistillOptimizerConfig()
    rollouts: DistillRolloutsConfig = DistillRolloutsConfig()
    rewards: RewardWeights = Field({}, description="rewards to record beside the loss, as name=weight")

    @property
    def teacher_is_server(self) -> bool:
        return is_server(self.teacher)

    def _in_vain(self) -> str | None:
        if self.environment.name is None:
            return self.cluster.problem_with_files or super()._in_vain()
        given = self._given(name for name in OF_FILES if name != "precompute_reference")
        if given:
            return f"{named(given)} does not go with `environment`: it is for data on file"
        return None

    @model_validator(mode="after")
    def _what_a_server_can_tell(self) -> Self:
        if not self.teacher_is_server:
            return self
        if self.beta != 1:
            raise ValueError(
                f"`beta` is {self.beta:g}: a server gives the log-probabilities of the sampled tokens only, from which "
                "the reverse KL is estimated (beta 1); a teacher in this process has whole distributions"
            )
        if self.sampling.temperature != 1:
            raise ValueError(
                f"`temperature` is {self.sampling.temperature:g}: a server gives log-probabilities at temperature 1, "
                "and the student must sample at the same"
            )
        cuts = [name for name in CUTS if getattr(self.sampling, name) != SamplingConfig.model_fields[name].default]
        if cuts:
            raise ValueError(
                f"{named(cuts, ' and ')} {'is' if len(cuts) == 1 else 'are'} given: a server scores the sampled tokens "
                "only, and those that are never sampled would be missing from the reverse KL"
            )
        return self


# Settings that keep some tokens from being sampled.
CUTS = ("top_p", "top_k", "min_p")


class Distill:
    """The mean divergence per token; every call is a part of its own.

    With a local teacher the policy computes the divergences, and the loss gets them in place of
    log-probabilities. With a server, its log-probabilities are the reference.
    """

    needs_reference = False
    precompute_reference = False

    def __init__(self, config: DistillConfig) -> None:
        self.config = config
        self.temperature = config.sampling.temperature

    def examples(self, data: Data, builder: CallBuilder) -> Examples[GroupExample]:
        found = examples_from(data, self.config, builder, self._checked, GroupExample, score="reward")
        if self.config.teacher_is_server and not found.temperatures <= {1.0}:
            others = " ".join(f"{value:g}" for value in sorted(found.temperatures - {1.0}))
            raise InputError(
                f"{found.name}: replies were sampled at temperature {others}, but a server scores them at 1; sample "
                "with --temperature 1, or use a teacher in this process"
            )
        return found

    def example(self, group: Group, source: CallSource) -> GroupExample:
        """All calls of the attempts. Raises RowError where none can be trained."""
        calls: list[Call] = []
        for attempt in group.attempts:
            calls += source.calls(attempt.start, attempt.turns, attempt.tools).values()
        if not calls:
            raise RowError("nothing_to_train", "no reply of this record can be trained")
        return GroupExample(
            calls=calls,
            cluster=head_of(group.attempts[0].start),
            advantages=(0.0,) * len(calls),
            weights=(1.0,) * len(calls),
            denominator=float(sum(len(call.completion_ids) for call in calls)),
        )

    def against_flat(self, kind: FlatKind) -> tuple[str, ...]:  # noqa: ARG002  no rewards are compared
        return ()

    def parts(self, example: GroupExample) -> list[GroupExample]:
        return example.by_call()

    def amount(self, example: GroupExample) -> float:
        return example.denominator

    def loss(
        self,
        parts: Sequence[GroupExample],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
    ) -> Loss:
        import torch

        found = torch.cat([of_part[0] for of_part in logprobs])
        if reference is None:
            return divergence_loss(found, denominator=denominator)
        # Where the sampler's are not known: in a batch's only update, the policy is still the one that sampled.
        pairs = zip(parts, logprobs, strict=True)
        old = torch.cat([part.old_logprobs[0].to(now) if part.old_logprobs else now.detach() for part, (now,) in pairs])
        sampler = sampler_logprobs([part.calls[0] for part in parts], old, self.temperature)
        teacher = torch.cat([of_part[0] for of_part in reference])
        return sampled_reverse_kl(found, old if sampler is None else sampler, teacher, denominator=denominator)

    def _checked(self, sample: Sample, source: CallSource) -> GroupExample:
        if isinstance(sample, Pair):
            raise RowError("wrong_kind", "this is a pair; distillation learns from trajectories or groups")
        attempts = [sample] if isinstance(sample, Trajectory) else sample.attempts
        return self.example(Group(task=sample.task, attempts=attempts), source)


def divergence_loss(divergences_N: Tensor, *, denominator: float) -> Loss:
    """Σ D / `denominator`, over the N answered tokens of a micro-batch: TRL's GKD loss on the same tokens.

    `denominator` counts the tokens of the whole optimizer step. Metric: `divergence`, in nats per token.
    """
    (divergences_N,) = float_vectors(divergences_N)
    metrics = {"divergence": Mean(divergences_N.detach().sum(), len(divergences_N))}
    return Loss(share(divergences_N.sum(), denominator), metrics)


def sampled_reverse_kl(
    logprobs_N: Tensor, sampler_logprobs_N: Tensor, teacher_logprobs_N: Tensor, *, denominator: float
) -> Loss:
    """Σ (π / π_sampler) · (log π − log π_teacher) / `denominator`, the difference without gradient.

    The student sampled the tokens, maybe with older weights: `sampler_logprobs_N` are theirs. Weighted by the ratio,
    the mean of the difference estimates the reverse KL of each token's distribution, and the gradient of this loss
    that KL's gradient: the score of the sampled token times the difference. It is unbiased and noisy: one sample for
    a sum over the vocabulary. Metric: `divergence`, the estimate in nats per token.
    """
    logprobs_N, sampler_N, teacher_N = float_vectors(logprobs_N, sampler_logprobs_N, teacher_logprobs_N)
    gaps_N = bounded_exp(logprobs_N - sampler_N.detach()) * (logprobs_N - teacher_N).detach()
    metrics = {"divergence": Mean(gaps_N.detach().sum(), len(gaps_N))}
    return Loss(share(gaps_N.sum(), denominator), metrics)


# The command: `bough distill`, `bough.distill`.


def train_distill(config: DistillConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Distillation from a teacher on episodes: given here, on file, or played in the settings' environment."""
    from bough.methods.teacher import distill as train_student

    return train_student(config, data, held_out)


@settings_of(DistillConfig, "train_file", "own_agent")
def distill(
    model: ModelLike,
    teacher: ModelLike,
    records: Source | None = None,
    *,
    environment: EnvironmentLike | None = None,
    agent: AgentLike | None = None,
    rewards: Rewards | None = None,
    eval_file: Source | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train a student on its own episodes to answer with a teacher's distribution.

    `teacher` is a model with the student's tokenizer by name, folder or loaded, or the address
    of a server. With `environment`, a name or a class, or your own `agent`, the student plays
    there and learns from what it played; give `max_steps` then. `records` are episodes or groups
    instead, in memory or on file. The other arguments are those of `bough.grpo`.
    """
    from bough.commands.models import LoadedModel, TemporaryFolder, model_name
    from bough.commands.objects import reward_weights, where_to_play

    play = where_to_play(environment, agent)
    play |= {"rewards": reward_weights(rewards)} if rewards else {}
    kept = TemporaryFolder()
    from_ = teacher.save(kept.path / "teacher") if isinstance(teacher, LoadedModel) else teacher
    play |= {"teacher": model_name(from_)}
    trained = trained_model(DistillConfig, train_distill, model, records, eval_file, output_dir, settings | play)
    del kept  # the weights of a loaded teacher are no longer needed
    return trained


COMMANDS = {
    "distill": training_command(
        DistillConfig,
        train=train_distill,
        essential=(*ESSENTIAL_ONLINE, "teacher", "beta", "server_model"),
        reads="groups",
        examples="  bough distill --teacher Qwen/Qwen3-4B --model Qwen/Qwen3-0.6B --environment household "
        "--max-steps 200 --output-dir runs/distill\n"
        "  bough distill --teacher runs/sft/final --model smollm2 --beta 0.5 --train-file runs/own/trajectories.jsonl",
        or_plays=True,
        labels="teacher",
    )
}
