"""Distillation: the student learns a teacher's distribution on the tokens that the student itself sampled.

Each answered token has a divergence from the teacher, which reads the same token tree as the
student, once, and gives whole distributions; the loss is its mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from bough.config.groups import RewardWeights, is_server
from bough.config.keywords import settings_of
from bough.config.online import OnlineConfig, RolloutsConfig
from bough.config.problems import named
from bough.config.training import OF_FILES, OptimizerConfig, TrainingDataConfig, learning_rate_field
from bough.data.base import Sample
from bough.errors import InputError, RowError
from bough.ledger import Mean
from bough.methods.base import ESSENTIAL_ONLINE, train_on_data, trained_model, training_command
from bough.training.method import CallSource, Data, Examples, GroupExample, Loss, float_vectors, head_of, share
from bough.types import Call, Group, Pair, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from bough.chat.builder import CallBuilder
    from bough.commands.models import ModelLike, TrainedModel
    from bough.commands.objects import AgentLike, EnvironmentLike, Rewards, Source, StrPath
    from bough.policy.policy import Policy
    from bough.training.run import Run, Trained


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
    resample: float = Field(
        2.0, ge=1, description="limit on the tasks tried to fill a batch if episodes are lost, in batch sizes"
    )


class DistillConfig(OnlineConfig):
    """On-policy distillation: the student plays, and learns a teacher's distribution over each token it sampled."""

    command = "distill"

    teacher: str = Field(description="the model to learn from, with the student's tokenizer")
    beta: float = Field(
        1.0,
        ge=0,
        le=1,
        description="the divergence: 1 reverse KL, 0 forward KL, between them generalised Jensen-Shannon (GKD)",
    )
    data: DistillDataConfig = DistillDataConfig()
    optimizer: DistillOptimizerConfig = DistillOptimizerConfig()
    rollouts: DistillRolloutsConfig = DistillRolloutsConfig()
    rewards: RewardWeights = Field({}, description="rewards to record beside the loss, as name=weight")

    @field_validator("teacher")
    @classmethod
    def _is_a_model(cls, teacher: str) -> str:
        if is_server(teacher):
            raise ValueError(
                "a teacher is loaded in this process: a server does not give whole distributions; "
                "bough corrections --by ADDRESS learns from a server's replies"
            )
        return teacher

    def _in_vain(self) -> str | None:
        if self.environment.name is None:
            return self.cluster.problem_with_files or super()._in_vain()
        if given := self._given(OF_FILES):
            return f"{named(given)} does not go with `environment`: it is for data on file"
        return None


class Distill:
    """The mean divergence per token; every call is a part of its own.

    The policy computes the divergences, and the loss gets them in place of log-probabilities.
    """

    needs_reference = False

    def __init__(self, config: DistillConfig) -> None:
        self.config = config
        self.temperature = config.sampling.temperature

    def examples(self, data: Data, builder: CallBuilder) -> Examples[GroupExample]:
        from bough.methods.examples import examples_from

        return examples_from(data, self.config, builder, self._checked, GroupExample, score="reward")

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

    def parts(self, example: GroupExample) -> list[GroupExample]:
        return example.by_call()

    def amount(self, example: GroupExample) -> float:
        return example.denominator

    def loss(
        self,
        parts: Sequence[GroupExample],  # noqa: ARG002
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,  # noqa: ARG002  the teacher's are in the divergences
        denominator: float,
    ) -> Loss:
        import torch

        return divergence_loss(torch.cat([of_part[0] for of_part in logprobs]), denominator=denominator)

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


@contextmanager
def taught(policy: Policy, run: Run[DistillConfig]) -> Iterator[None]:
    """Within it the policy has its teacher."""
    import torch

    from bough.policy.head import Teacher
    from bough.policy.policy import Policy

    config = run.config
    check_tokenizer(config.teacher, config.model, run.template.tokenizer)
    teacher = Policy.load(config.teacher, attention=config.machine.attention, device=policy.device)
    teacher.eval().requires_grad_(False)
    if teacher.obstacle is not None:
        policy.row_reader.obstacle = policy.obstacle or f"its teacher cannot: {teacher.obstacle}"
    policy.teacher = Teacher(teacher, config.beta)
    try:
        yield
    finally:
        policy.teacher = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def check_tokenizer(teacher: str, student: str, tokenizer: Any) -> None:
    """InputError unless both models mean the same text by every token id."""
    from bough.chat.template import load_template
    from bough.policy.load import base_and_adapter

    other = load_template(base_and_adapter(teacher)[0]).tokenizer
    ours, theirs = tokenizer.get_vocab(), other.get_vocab()
    if ours == theirs:
        return
    token = min((t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t)), key=lambda t: (len(t), t))
    raise InputError(
        f"the teacher {teacher} has another tokenizer than {student}: the token {token!r} is "
        f"{theirs.get(token, 'missing')} there and {ours.get(token, 'missing')} here, so it cannot score the student's "
        f"tokens. bough corrections --by {teacher} learns from its replies instead"
    )


# The command: `bough distill`, `bough.distill`.


def train_distill(config: DistillConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Distillation from a teacher on episodes: given here, on file, or played in the settings' environment."""
    if config.environment.name is None:
        return train_on_data(Distill, config, data, held_out, taught)
    from bough.online.source import with_learners

    return with_learners(config, learn_online)


def learn_online(config: DistillConfig) -> Trained:
    """Trains on batches that the student plays itself, in this process: one of several learners or the only one."""
    from bough.online.source import learn

    return learn(config, Distill, taught)


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

    `teacher` is a model with the student's tokenizer by name, folder or loaded. With `environment`, a
    name or a class, or your own `agent`, the student plays there and learns from what it played; give
    `max_steps` then. `records` are episodes or groups instead, in memory or on file. The other
    arguments are those of `bough.grpo`.
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
        essential=(*ESSENTIAL_ONLINE, "teacher", "beta"),
        reads="groups",
        examples="  bough distill --teacher Qwen/Qwen3-4B --model Qwen/Qwen3-0.6B --environment household "
        "--max-steps 200 --output-dir runs/distill\n"
        "  bough distill --teacher runs/sft/final --model smollm2 --beta 0.5 --train-file runs/own/trajectories.jsonl",
        or_plays=True,
        labels="teacher",
    )
}
