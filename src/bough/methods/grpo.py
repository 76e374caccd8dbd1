"""GRPO, group-relative policy optimisation: attempts at one task are compared with each other.

Every call has an advantage; the loss is the clipped surrogate, averaged over tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from bough.config.base import named
from bough.config.keywords import settings_of
from bough.config.training import (
    OF_FILES,
    OnlineConfig,
    OptimizerConfig,
    SamplerConfig,
    TrainingDataConfig,
    learning_rate_field,
)
from bough.curation.advantages import StepFormula, call_advantages, state_call_advantages
from bough.data.base import Sample
from bough.environments.rubric import score
from bough.errors import InputError, RowError
from bough.ledger import Mean
from bough.methods.base import ESSENTIAL_ONLINE, train_on_data, trained_model, training_command
from bough.training.method import CallSource, Data, Examples, GroupExample, Loss, float_vectors, head_of, share
from bough.types import Call, Group

if TYPE_CHECKING:
    from torch import Tensor

    from bough.chat.template import CallBuilder
    from bough.commands.models import ModelLike, TrainedModel
    from bough.commands.objects import AgentLike, EnvironmentLike, Rewards, Source, StrPath
    from bough.training.run import Trained


# GRPO's loss, the clipped surrogate, and its parts: functions of the ratio between two policies' probabilities.

# Past e^20 an exponential continues along its tangent: it stays finite in float32, and unlike
# a clamp it keeps a gradient just where the policy has moved furthest.
MAX_EXPONENT = 20.0
# Upper bound of the importance weight between sampler and trainer.
IMPORTANCE_CAP = 2.0


def grpo_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    weights_N: Tensor,
    *,
    denominator: float,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    kl_coef: float = 0.0,
    reference_logprobs_N: Tensor | None = None,
    sampler_logprobs_N: Tensor | None = None,
) -> Loss:
    """−Σ w · (s · gain − kl_coef · k3) / `denominator`, over a micro-batch's N trained tokens.

    With ratio ρ = exp(log π − log π_old) and advantage A, the gain is that of `clipped`.

    `old_logprobs_N` are the trainer's own before its first update on this data (on-policy:
    `logprobs_N.detach()`). Where the sampler is another engine its log-probabilities of the
    same tokens differ; given as `sampler_logprobs_N`, they correct for that (`importance_weights`).

    k3 is Schulman's estimate of KL(π ‖ π_ref), e^d − d − 1 with d = log π_ref − log π. It is off by
    default; a reference with `kl_coef` 0 is measured only.

    Shapes: all [N], one entry per trained token. `weights_N` and `denominator` are from
    `aggregation_weights`, `denominator` summed over all micro-batches and ranks of the
    optimizer step. A token of weight 0 counts in no metric.

    Metrics, per trained token: `ratio`; `clip_high_fraction`, `clip_low_fraction`,
    `dual_clip_fraction` (tokens without a gradient, by cause); `approx_kl`, k3 of
    KL(π_old ‖ π); `entropy`, estimated as −log π of the sampled tokens. With a reference
    `reference_kl`; with a sampler `mismatch_kl`, k3 of KL(π_sampler ‖ π_old),
    `importance_weight` (s) and `importance_capped_fraction`.
    """
    assert not kl_coef or reference_logprobs_N is not None, "a divergence needs a reference"
    logprobs_N, old_N, advantages_N, weights_N = float_vectors(logprobs_N, old_logprobs_N, advantages_N, weights_N)
    old_N = old_N.detach()
    gain_N, values = clipped(logprobs_N - old_N, advantages_N, clip_low, clip_high, dual_clip)
    values["entropy"] = -logprobs_N
    if sampler_logprobs_N is not None:
        importance_N, measured = importance_weights(old_N, sampler_logprobs_N)
        gain_N = gain_N * importance_N
        values |= measured
    if reference_logprobs_N is not None:
        reference_N, _ = float_vectors(reference_logprobs_N, old_N)
        values["reference_kl"] = k3(reference_N.detach() - logprobs_N)
        gain_N = gain_N - kl_coef * values["reference_kl"]
    metrics = {name: Mean.over(value_N, weights_N > 0) for name, value_N in values.items()}
    return Loss(share(-(weights_N * gain_N).sum(), denominator), metrics)


def clipped(
    log_ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The gain of each token (GRPO, 2402.03300, after PPO, 1707.06347; separate bounds from DAPO, 2503.14476).

        gain = min(ρA, clip(ρ, 1 − clip_low, 1 + clip_high) A),  and for A < 0 with dual clip
        gain = max(gain, dual_clip · A)                          (1912.09729; DAPO runs with 10)

    So a token has no gradient when A > 0 and ρ > 1 + clip_high, when A < 0 and ρ < 1 − clip_low,
    when A < 0 and ρ > dual_clip; and the gradient −w s ρ A / denominator otherwise.
    """
    farthest = math.inf if dual_clip is None else dual_clip
    ratio_N = bounded_exp(log_ratio_N)
    too_high_N = (advantages_N > 0) & (ratio_N > 1 + clip_high)
    too_low_N = (advantages_N < 0) & (ratio_N < 1 - clip_low)
    too_far_N = (advantages_N < 0) & (ratio_N > farthest)
    # The masks are the clip: a masked token's ratio is a constant, any other keeps its gradient.
    bounded_N = ratio_N.masked_fill(too_high_N, 1 + clip_high).masked_fill(too_low_N, 1 - clip_low)
    metrics = {
        "ratio": ratio_N,
        "clip_high_fraction": too_high_N.float(),
        "clip_low_fraction": too_low_N.float(),
        "dual_clip_fraction": too_far_N.float(),
        "approx_kl": k3(log_ratio_N),
    }
    return bounded_N.masked_fill(too_far_N, farthest) * advantages_N, metrics


def sampler_logprobs(calls: Sequence[Call], old_N: Tensor, temperature: float) -> Tensor | None:
    """The sampler's log-probabilities of the calls' answers; None where no call has any.

    A call without them gets those before the update, so nothing is corrected. The trainer's are
    at `temperature`; the sampler's at another cannot be compared with them and count as missing.
    """
    import torch

    values = [call.logprobs if call.logprobs_temperature == temperature else None for call in calls]
    if all(value is None for value in values):
        return None
    pieces = torch.split(old_N, [len(call.completion_ids) for call in calls])
    return torch.cat([p if v is None else p.new_tensor(v) for p, v in zip(pieces, values, strict=True)])


def importance_weights(old_N: Tensor, sampler_logprobs_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Truncated importance sampling: s = min(exp(log π_old − log π_sampler), 2), a constant for the gradient.

    Ionides 2008; for LLMs Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training".
    """
    sampler_N, _ = float_vectors(sampler_logprobs_N, old_N)
    mismatch_N = old_N - sampler_N.detach()
    importance_N = bounded_exp(mismatch_N).clamp(max=IMPORTANCE_CAP)
    metrics = {
        "mismatch_kl": k3(mismatch_N),
        "importance_weight": importance_N,
        "importance_capped_fraction": (mismatch_N > math.log(IMPORTANCE_CAP)).float(),
    }
    return importance_N, metrics


def k3(log_ratio_N: Tensor) -> Tensor:
    """e^d − d − 1 ≥ 0 for the log-ratio d = log q − log p of tokens sampled from p: an estimate of KL(p ‖ q).

    Unbiased and of low variance (joschu.net/blog/kl-approx). Linear past d = `MAX_EXPONENT`.
    """
    # expm1, because near 0 the terms of e^d − d − 1 cancel to nothing in float32.
    return log_ratio_N.clamp(max=MAX_EXPONENT).expm1() + _past_bound(log_ratio_N) - log_ratio_N


def bounded_exp(log_ratio_N: Tensor) -> Tensor:
    """e^d, linear past d = `MAX_EXPONENT`."""
    return log_ratio_N.clamp(max=MAX_EXPONENT).exp() + _past_bound(log_ratio_N)


def _past_bound(log_ratio_N: Tensor) -> Tensor:
    """What the tangent of the exponential at `MAX_EXPONENT` adds beyond it."""
    return math.exp(MAX_EXPONENT) * (log_ratio_N - MAX_EXPONENT).relu()


# How the tokens of sequences average into one loss.

Averaging = Literal["token_mean", "sequence_mean", "constant_length"]


def aggregation_weights(
    lengths: Sequence[int], how: Averaging = "token_mean", constant_length: int = 1
) -> tuple[list[float], float]:
    """A weight for every token of each sequence, and these sequences' share of the loss's denominator.

    `lengths` are trained tokens per sequence; a sequence is a whole trajectory, however
    many calls it has. A sequence without tokens counts nowhere.

    | how             | a token's weight    | share of the denominator | paper                |
    |-----------------|---------------------|--------------------------|----------------------|
    | token_mean      | 1                   | Σ lengths                | DAPO, 2503.14476     |
    | sequence_mean   | 1 / its length      | number of sequences      | GRPO, 2402.03300     |
    | constant_length | 1 / constant_length | number of sequences      | Dr. GRPO, 2503.20783 |

    Shares add up over micro-batches and ranks to the one denominator that `grpo_loss` takes.
    """
    if how == "token_mean":
        return [1.0] * len(lengths), float(sum(lengths))
    divisors = [constant_length if how == "constant_length" else max(length, 1) for length in lengths]
    return [1 / divisor for divisor in divisors], float(sum(length > 0 for length in lengths))


# Settings that have an effect only with advantage state or graph.
OF_STATES = ("attempt_weight", "discount")
# Settings that decide what the examples of a file are.
OF_EXAMPLES = ("reward", "normalise", "advantage", "step_formula", "averaging", "constant_length", *OF_STATES)


class GroupDataConfig(TrainingDataConfig):
    """Training data."""

    train_file: Path | None = Field(  # type: ignore[assignment]  # the others must have one
        None, description="groups of attempts; or give --environment to sample them"
    )


class GRPOOptimizerConfig(OptimizerConfig):
    """Optimizer and number of steps."""

    learning_rate: float = learning_rate_field(lora=1e-5, full=1e-6)
    num_epochs: float = Field(1, gt=0, description="number of passes over the data")


class GRPOConfig(OnlineConfig):
    """Group-relative policy optimisation: several attempts at each task are compared; those with a reward above the
    group's mean become more likely.

    The attempts are on file, or played in an environment while training.
    """

    command = "grpo"

    data: GroupDataConfig = GroupDataConfig()
    optimizer: GRPOOptimizerConfig = GRPOOptimizerConfig()
    sampler: SamplerConfig = SamplerConfig()
    reward: str | None = Field(
        None,
        description="the reward to compare by (default: the total, the only one there is, or the outcome)",
    )
    normalise: bool = Field(True, description="divide advantages by the group's standard deviation (off: Dr. GRPO)")
    # One list, not the union of those of the two modules: a flag names all choices of one Literal.
    advantage: Literal["attempt", "step", "turn", "state", "graph"] = Field(
        "attempt",
        description="what gets an advantage: an attempt; its steps, which share it by their rewards; each turn; "
        "steps compared with others from the same state (GiGPO); or by how near they bring the goal (GraphGPO)",
    )
    step_formula: StepFormula = Field(
        "bounded",
        description="how steps share an advantage: bounded never punishes a better step more; seed is A · r / mean(r)",
    )
    attempt_weight: float = Field(
        1.0, ge=0, description="weight of the attempt's advantage, with advantage state or graph"
    )
    discount: float = Field(0.95, gt=0, le=1, description="discount of rewards per step, with advantage state or graph")
    averaging: Averaging = Field("token_mean", description="how tokens average into the loss")
    constant_length: int | None = Field(
        None, ge=1, description="the tokens of an attempt, all its turns, that averaging constant_length divides by"
    )
    clip_low: float = Field(0.2, ge=0, le=1, description="how far a ratio may fall below 1")
    clip_high: float = Field(0.28, ge=0, description="how far a ratio may rise above 1")
    dual_clip: float | None = Field(
        None, gt=1, description="upper bound of the ratio where the advantage is negative (DAPO: 10)"
    )
    kl_coef: float = Field(0.0, ge=0, description="weight of the KL divergence from the reference")

    @property
    def sampled_by(self) -> SamplerConfig:
        return self.sampler

    @property
    def learnt_reward(self) -> str | None:
        return self.reward or super().learnt_reward

    def _in_vain(self) -> str | None:
        if self.environment.name is None:
            if self.sampler.engine == "vllm":
                return "`engine` vllm needs `environment`"
            return self.cluster.problem_with_files or super()._in_vain()
        given = self._given(OF_FILES)
        if given:
            return f"{named(given)} does not go with `environment`: it is for data on file"
        if self.kl_coef and not self.lora.enabled:
            return "`kl_coef` with `environment` needs `use_lora`: without an adapter no start policy is kept"
        return self.sampler.problem(self.sampling, lora=self.lora.enabled, qlora=self.lora.qlora)

    @model_validator(mode="after")
    def _settings_together(self) -> Self:
        given = [name for name in OF_STATES if getattr(self, name) != type(self).model_fields[name].default]
        if given and self.advantage not in ("state", "graph"):
            raise ValueError(f"{named(given)} needs `advantage` state or graph")
        if self.averaging == "constant_length" and self.constant_length is None:
            raise ValueError("`averaging` constant_length needs `constant_length`, the length to divide by")
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"`dual_clip` bounds ratios beyond the clip range, so above {1 + self.clip_high:g}")
        return self


class GRPO:
    """The clipped surrogate per token; every call is a part of its own.

    The reference stands in for the policy before its first update, which it is: the start
    adapter, or none. Where the sampler's log-probabilities are known, they correct for its
    difference from the trainer.
    """

    needs_reference = True

    def __init__(self, config: GRPOConfig) -> None:
        self.config, self.temperature = config, config.sampling.temperature

    def examples(self, data: Data, builder: CallBuilder) -> Examples[GroupExample]:
        """The groups as examples; groups without a training signal are dropped and counted."""
        from bough.methods.examples import examples_from

        found = examples_from(
            data, self.config, builder, self._checked, GroupExample, score="reward", depends_on=OF_EXAMPLES
        )
        sampled = found.temperatures - {0.0}  # greedy replies among the others have no variance to learn from
        if not sampled <= {self.temperature}:
            raise InputError(
                f"{found.name}: replies were sampled at temperature {' '.join(f'{one:g}' for one in sorted(sampled))}, "
                f"but temperature is {self.temperature:g}; give theirs with --temperature"
            )
        return found

    def example(self, group: Group, source: CallSource) -> GroupExample:
        """The group as an example. Raises RowError where it gives no training signal."""
        config = self.config
        calls: list[Call] = []
        advantages: list[float] = []
        lengths: list[int] = []
        owner: list[int] = []
        for number, (attempt, of_turns) in enumerate(zip(group.attempts, self.advantages(group), strict=True)):
            found = source.calls(attempt.start, attempt.turns, attempt.tools)
            trained = [(call, advantage) for t, call in found.items() if (advantage := of_turns[t]) is not None]
            calls += [call for call, _ in trained]
            advantages += [advantage for _, advantage in trained]
            owner += [number] * len(trained)
            lengths.append(sum(len(call.completion_ids) for call, _ in trained))
        if not calls:
            raise RowError("nothing_to_train", "no reply of this group can be trained")
        weights, denominator = aggregation_weights(lengths, config.averaging, config.constant_length or 1)
        rewards = [reward for attempt in group.attempts if (reward := score(attempt, config.reward)) is not None]
        return GroupExample(
            calls=calls,
            cluster=head_of(group.attempts[0].start),
            advantages=tuple(advantages),
            weights=tuple(weights[number] for number in owner),
            denominator=denominator,
            reward=fmean(rewards) if rewards else None,
        )

    def advantages(self, group: Group) -> list[list[float | None]]:
        """An advantage for every turn of every attempt; None where it was not scored. RowError if all are alike."""
        config = self.config
        if config.advantage == "state" or config.advantage == "graph":
            return state_call_advantages(
                group,
                level=config.advantage,
                reward=config.reward,
                normalise=config.normalise,
                discount=config.discount,
                attempt_weight=config.attempt_weight,
            )
        return call_advantages(
            group,
            reward=config.reward,
            level=config.advantage,
            formula=config.step_formula,
            normalise=config.normalise,
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

        config = self.config
        found = [of_part[0] for of_part in logprobs]
        start = torch.cat([of_part[0] for of_part in reference]) if reference is not None else None
        old = self.old_logprobs(parts, found, start)
        return grpo_loss(
            torch.cat(found),
            old,
            torch.cat([torch.full_like(f, part.advantages[0]) for part, f in zip(parts, found, strict=True)]),
            torch.cat([torch.full_like(f, part.weights[0]) for part, f in zip(parts, found, strict=True)]),
            denominator=denominator,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            kl_coef=config.kl_coef,
            reference_logprobs_N=start if config.kl_coef else None,
            sampler_logprobs_N=sampler_logprobs([part.calls[0] for part in parts], old, self.temperature),
        )

    def old_logprobs(
        self,
        parts: Sequence[GroupExample],  # noqa: ARG002  those that were just played know their own
        found: Sequence[Tensor],  # noqa: ARG002
        start: Tensor | None,
    ) -> Tensor:
        """The policy's log-probabilities before its first update on this data."""
        assert start is not None
        return start

    def _checked(self, sample: Sample, source: CallSource) -> GroupExample:
        if not isinstance(sample, Group):
            kind = type(sample).__name__.lower()
            raise RowError("wrong_kind", f"this is a {kind}; GRPO learns from groups (see bough groups --help)")
        return self.example(sample, source)


class OnlineGRPO(GRPO):
    """GRPO on groups that the policy in training has just sampled; a reference is only needed for a divergence."""

    def __init__(self, config: GRPOConfig) -> None:
        super().__init__(config.model_copy(update={"reward": config.learnt_reward}))
        self.needs_reference = config.kl_coef > 0

    def old_logprobs(
        self,
        parts: Sequence[GroupExample],
        found: Sequence[Tensor],
        start: Tensor | None,  # noqa: ARG002  the reference did not sample these groups
    ) -> Tensor:
        """The policy's as it is now; where a batch has several updates, those computed before the first."""
        import torch

        return torch.cat(
            [
                part.old_logprobs[0].to(now.device) if part.old_logprobs else now.detach()
                for part, now in zip(parts, found, strict=True)
            ]
        )


# The command: `bough grpo`, `bough.grpo`.


def train_grpo(config: GRPOConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Group-relative policy optimisation on groups: given here, on file, or played in the settings' environment."""
    if config.environment.name is None:
        return train_on_data(GRPO, config, data, held_out)
    from bough.online.source import with_learners

    return with_learners(config, learn_online)


def learn_online(config: GRPOConfig) -> Trained:
    """Trains on batches of groups that the policy plays itself, in this process: one of several or the only one."""
    from bough.online.source import learn

    # The start policy is kept in any case, to measure how far the policy has moved.
    return learn(config, OnlineGRPO)


@settings_of(GRPOConfig, "train_file", "own_agent")
def grpo(
    model: ModelLike,
    records: Source | None = None,
    *,
    environment: EnvironmentLike | None = None,
    agent: AgentLike | None = None,
    rewards: Rewards | None = None,
    eval_file: Source | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train a model on how much better than its group each attempt was.

    `records` are groups, in memory or on file. With `environment`, a name or a class,
    instead of records the model plays there, learns from what it played and plays again;
    give `max_steps` then. With `agent`, your own function that plays a task against an address,
    it learns from what that function asked it. `rewards` are names or functions, as in `bough.collect`. The other
    arguments are those of `bough.sft`.
    """
    from bough.commands.objects import reward_weights, where_to_play

    play = where_to_play(environment, agent)
    play |= {"rewards": reward_weights(rewards)} if rewards else {}
    return trained_model(GRPOConfig, train_grpo, model, records, eval_file, output_dir, settings | play)


COMMANDS = {
    "grpo": training_command(
        GRPOConfig,
        train=train_grpo,
        essential=(*ESSENTIAL_ONLINE, "reward", "advantage", "clip_low", "clip_high", "kl_coef", "engine"),
        reads="groups",
        examples="  bough grpo --train-file groups.jsonl --model runs/dpo/final --output-dir runs/grpo\n"
        "  bough grpo --agent my_agent.py:play --model smollm2 --max-steps 100 --output-dir runs/grpo",
        or_plays=True,
    )
}
