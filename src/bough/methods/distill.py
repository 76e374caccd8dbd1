"""Distillation: the student learns a teacher's distribution on the tokens that the student itself sampled.

Each answered token has a divergence from the teacher; the loss is its mean. A teacher in this
process reads the same token tree as the student, once, and gives whole distributions. A server
gives the log-probabilities of the sampled tokens only, from which the reverse KL is estimated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from bough.config.base import named
from bough.config.groups import RewardWeights, is_server
from bough.config.keywords import settings_of
from bough.config.training import (
    OF_FILES,
    OnlineConfig,
    OptimizerConfig,
    RolloutsConfig,
    TrainingDataConfig,
    learning_rate_field,
)
from bough.data.base import Sample
from bough.errors import InputError, RowError
from bough.event_loop import BackgroundLoop
from bough.ledger import Mean
from bough.methods.base import ESSENTIAL_ONLINE, train_on_data, trained_model, training_command
from bough.methods.grpo import bounded_exp, sampler_logprobs
from bough.training.method import CallSource, Data, Examples, GroupExample, Loss, float_vectors, head_of, share
from bough.types import Call, Group, Pair, Trajectory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bough.chat.template import CallBuilder
    from bough.commands.models import ModelLike, TrainedModel
    from bough.commands.objects import AgentLike, EnvironmentLike, Rewards, Source, StrPath
    from bough.policy.policy import Policy
    from bough.training.run import Run, Trained
    from bough.trees.build import PlainRow, TreeRow


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

    def _in_vain(self) -> str | None:
        if self.environment.name is None:
            return self.cluster.problem_with_files or super()._in_vain()
        if given := self._given(OF_FILES):
            return f"{named(given)} does not go with `environment`: it is for data on file"
        return None

    @model_validator(mode="after")
    def _what_a_server_can_tell(self) -> Self:
        sampling = self.sampling
        scored = (self.beta, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, 1, 0, 0)
        if is_server(self.teacher) and not scored:
            raise ValueError(
                "a server scores the sampled tokens only, at temperature 1: `beta` and `temperature` must be 1, "
                "without `top_p`, `top_k` and `min_p`; a teacher in this process gives whole distributions"
            )
        return self


class Distill:
    """The mean divergence per token; every call is a part of its own.

    With a teacher in this process the policy computes the divergences, and the loss gets them in place of
    log-probabilities. With a server, its log-probabilities are the reference.
    """

    needs_reference = False

    def __init__(self, config: DistillConfig) -> None:
        self.config = config
        self.temperature = config.sampling.temperature

    def examples(self, data: Data, builder: CallBuilder) -> Examples[GroupExample]:
        from bough.methods.examples import examples_from

        found = examples_from(data, self.config, builder, self._checked, GroupExample, score="reward")
        if is_server(self.config.teacher) and not found.temperatures <= {1.0}:
            sampled = " ".join(f"{one:g}" for one in sorted(found.temperatures))
            raise InputError(
                f"{found.name}: replies were sampled at temperature {sampled}, but a server scores them at 1; sample "
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
        if reference is not None:
            # Where the sampler's are not known: in a batch's only update, the policy is still the one that sampled.
            pairs = zip(parts, logprobs, strict=True)
            old = [part.old_logprobs[0].to(now) if part.old_logprobs else now.detach() for part, (now,) in pairs]
            sampler = sampler_logprobs([part.calls[0] for part in parts], torch.cat(old), self.temperature)
            teacher = torch.cat([of_part[0] for of_part in reference])
            found = sampled_reverse_kl(found, torch.cat(old) if sampler is None else sampler, teacher)
        return divergence_loss(found, denominator=denominator)

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


def sampled_reverse_kl(logprobs_N: Tensor, sampler_logprobs_N: Tensor, teacher_logprobs_N: Tensor) -> Tensor:
    """(π / π_sampler) · (log π − log π_teacher) of each sampled token, the difference without gradient.

    The student sampled the tokens, maybe with older weights: `sampler_logprobs_N` are theirs. Weighted by the ratio,
    the mean of the difference estimates the reverse KL of each token's distribution, and its gradient that KL's
    gradient. It is unbiased and noisy: one sample for a sum over the vocabulary.
    """
    logprobs_N, sampler_N, teacher_N = float_vectors(logprobs_N, sampler_logprobs_N, teacher_logprobs_N)
    return bounded_exp(logprobs_N - sampler_N.detach()) * (logprobs_N - teacher_N).detach()


PROBE = "THOUGHT: 12 apples, naïve 東京.\nACTION: go to shelf 1"


class TeacherServer:
    """Stands in for a reference: the log-probabilities that a server gives to the student's tokens.

    It gets each call's token ids as a prompt and echoes them with their log-probabilities, as
    vLLM's `/v1/completions` does.
    """

    def __init__(self, config: DistillConfig, device: torch.device) -> None:
        from bough.engines.http import Server

        self.server, self.model = Server(config.teacher, key_variable=config.key_variable), config.server_model
        self.device, self._loop = device, BackgroundLoop()

    def close(self) -> None:
        self._loop.run(self.server.close())
        self._loop.close()

    def of(self, rows: Sequence[TreeRow | PlainRow], calls: Sequence[Call]) -> list[list[Tensor]]:
        """For each row one tensor for each of its calls, in the row's order."""
        found = iter(self._loop.run(self._score([calls[c] for row in rows for c in row.calls])))
        return [[next(found) for _ in row.calls] for row in rows]

    async def _score(self, calls: list[Call]) -> list[Tensor]:
        import torch

        from bough.engines.base import EngineError

        if not all(call.prompt_ids for call in calls):
            raise EngineError(f"{self.server.url} cannot score a call without a prompt: its first token has no history")
        echoed = await asyncio.gather(*(self._echo([*call.prompt_ids, *call.completion_ids]) for call in calls))
        return [
            torch.tensor(values[len(call.prompt_ids) - 1 :], device=self.device)
            for call, (_, values) in zip(calls, echoed, strict=True)
        ]

    async def _echo(self, ids: list[int]) -> tuple[list[str], list[float]]:
        """The texts of all tokens but the first, and their log-probabilities."""
        from bough.engines.base import EngineError
        from bough.engines.openai import read_choice, read_logprobs

        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        given: Any = read_choice(await self.server.post("/completions", body), self.server.url).get("logprobs")
        try:
            texts = [str(text) for text in given["tokens"][1 : len(ids)]]
            values = read_logprobs({"token_logprobs": given["token_logprobs"][1 : len(ids)]}) or []
        except (KeyError, TypeError):
            texts, values = [], []
        if not len(texts) == len(values) == len(ids) - 1:
            raise EngineError(f"{self.server.url} answered without log-probabilities of the prompt")
        return texts, values

    def check(self, tokenizer: Any) -> None:
        """InputError unless the server can score the student's tokens."""
        from bough.engines.base import EngineError
        from bough.engines.openai import choose_model, list_models

        ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        self.model = self.model or choose_model("", self._loop.run(list_models(self.server)), self.server.url)
        refusal = f"the server at {self.server.url} cannot be the teacher: it"
        try:
            texts, _ = self._loop.run(self._echo(ids))
        except EngineError as error:
            raise InputError(f"{refusal} must echo a prompt of token ids with log-probabilities ({error})") from None
        for own, text in zip(map(tokenizer.decode, ids[1:]), texts, strict=True):
            if own.isascii() and own.strip() != text.strip():
                raise InputError(
                    f"{refusal} has another tokenizer (it reads {text!r} where the student wrote {own!r}). "
                    f"bough corrections --by {self.server.url} learns from its replies instead"
                )


@contextmanager
def taught(policy: Policy, run: Run[DistillConfig]) -> Iterator[TeacherServer | None]:
    """Within it the policy has its teacher, or the server that takes the place of one."""
    import torch

    from bough.policy.head import Teacher
    from bough.policy.policy import Policy

    config = run.config
    if is_server(config.teacher):
        with closing(TeacherServer(config, policy.device)) as server:
            server.check(run.template.tokenizer)
            yield server
        return
    check_tokenizer(config.teacher, config.model, run.template.tokenizer)
    teacher = Policy.load(config.teacher, attention=config.machine.attention, device=policy.device)
    teacher.eval().requires_grad_(False)
    if teacher.obstacle is not None:
        policy.row_reader.obstacle = policy.obstacle or f"its teacher cannot: {teacher.obstacle}"
    policy.teacher = Teacher(teacher, config.beta)
    try:
        yield None
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
