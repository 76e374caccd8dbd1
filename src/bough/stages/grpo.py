"""GRPO on groups of attempts: an advantage for every call, compared within its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from bough.calls.builder import CallBuilder
from bough.config.training import GRPOConfig
from bough.errors import InputError, RowError
from bough.formats.base import Sample
from bough.objectives.advantages import group_advantages, step_advantages, turn_advantages
from bough.objectives.base import Loss
from bough.objectives.grpo import aggregation_weights, grpo_loss
from bough.rewards.score import score
from bough.stages.examples import CallSource, Examples, by_difficulty, head_of, read_examples
from bough.training.objective import Example
from bough.types import Call, Group, Trajectory


@dataclass(frozen=True)
class GroupExample(Example):
    """The calls of a group's attempts, each with its advantage and the weight of its tokens.

    `before` are the calls' log-probabilities before the first update on this group, where
    they were computed.
    """

    advantages: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    before: tuple[Tensor, ...] = ()
    denominator: float = 0.0
    reward: float | None = None


class GRPOObjective:
    """The clipped surrogate per token; every call is a part of its own.

    On groups from a file the reference stands in for the policy before its first update,
    which it is: the start adapter, or none. On groups that were just played (`online`) the
    policy is where it was, or `before` says where that was; a reference is needed for a
    divergence from it only. Log-probabilities of the sampler correct for its difference.
    """

    def __init__(self, config: GRPOConfig, *, online: bool = False) -> None:
        self.config, self.online = config, online
        self.needs_reference = not online or config.kl_coef > 0

    def parts(self, example: GroupExample) -> list[GroupExample]:
        rows = enumerate(zip(example.calls, example.advantages, example.weights, strict=True))
        return [
            replace(example, calls=[c], advantages=(a,), weights=(w,), before=example.before[i : i + 1])
            for i, (c, a, w) in rows
        ]

    def amount(self, example: GroupExample) -> float:
        return example.denominator

    def loss(
        self,
        parts: Sequence[GroupExample],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
    ) -> Loss:
        config = self.config
        found = [of_part[0] for of_part in logprobs]
        start = torch.cat([of_part[0] for of_part in reference]) if reference is not None else None
        before = start if not self.online else torch.cat([_before(p, f) for p, f in zip(parts, found, strict=True)])
        assert before is not None
        return grpo_loss(
            torch.cat(found),
            before,
            torch.cat([torch.full_like(f, part.advantages[0]) for part, f in zip(parts, found, strict=True)]),
            torch.cat([torch.full_like(f, part.weights[0]) for part, f in zip(parts, found, strict=True)]),
            denominator=denominator,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            kl_coef=config.kl_coef,
            reference_logprobs_N=start if config.kl_coef else None,
            sampler_logprobs_N=_sampled(parts, before, config.temperature),
            importance_cap=config.importance_cap,
        )


def groups(config: GRPOConfig, builder: CallBuilder, held_out: bool = False) -> Examples[GroupExample]:
    """The groups of the training file, or of the held-out one; groups that teach nothing are dropped and counted."""

    def make(sample: Sample, source: CallSource) -> GroupExample:
        if not isinstance(sample, Group):
            raise RowError("wrong_kind", f"this is a {type(sample).__name__.lower()}; GRPO learns from groups")
        return make_attempts(sample, source, config)

    file = config.eval_file if held_out else config.train_file
    assert file is not None
    found = read_examples(file, config, builder, make)
    _check_temperature(file, found.examples, config.temperature)
    found.examples = by_difficulty(found.examples, [example.reward for example in found.examples])
    return found


def _check_temperature(file: Path, examples: Sequence[GroupExample], temperature: float) -> None:
    """Replies sampled at another temperature come from another distribution than the one that is trained."""
    sampled = {call.temperature for example in examples for call in example.calls if call.temperature}
    if sampled <= {temperature}:
        return
    if len(sampled) > 1:
        found = ", ".join(f"{value:g}" for value in sorted(sampled))
        raise InputError(
            f"{file}: replies were sampled at several temperatures ({found}); GRPO needs one for all groups"
        )
    [value] = sampled
    raise InputError(
        f"{file}: replies were sampled at temperature {value:g}, but temperature is {temperature:g}; "
        f"use --temperature {value:g}"
    )


def make_attempts(group: Group, source: CallSource, config: GRPOConfig) -> GroupExample:
    """The group as an example. Raises RowError where it teaches nothing."""
    spread = call_advantages(group, config)
    calls: list[Call] = []
    advantages: list[float] = []
    lengths: list[int] = []
    owner: list[int] = []
    for number, (attempt, of_turns) in enumerate(zip(group.attempts, spread, strict=True)):
        found = source.calls(attempt.start, attempt.turns, attempt.tools)
        trained = [(call, advantage) for t, call in found.items() if (advantage := of_turns[t]) is not None]
        calls += [call for call, _ in trained]
        advantages += [advantage for _, advantage in trained]
        owner += [number] * len(trained)
        lengths.append(sum(len(call.completion_ids) for call, _ in trained))
    if not calls:
        raise RowError("nothing_to_train", "no reply of this group can be trained")
    aggregation = aggregation_weights(lengths, config.averaging, constant_length=config.constant_length)
    rewards = [reward for attempt in group.attempts if (reward := score(attempt, config.reward)) is not None]
    return GroupExample(
        calls=calls,
        cluster=head_of(group.attempts[0].start),
        advantages=tuple(advantages),
        weights=tuple(aggregation.weights[number] for number in owner),
        denominator=aggregation.denominator,
        reward=fmean(rewards) if rewards else None,
    )


def call_advantages(group: Group, config: GRPOConfig) -> list[list[float | None]]:
    """An advantage for every turn of every attempt; None where it was not scored."""
    rewards = [score(attempt, config.reward) for attempt in group.attempts]
    level = "step" if config.step_level_advantage else config.advantage
    if level == "turn":
        by_turn = turn_advantages(
            [_turn_rewards(a, r) for a, r in zip(group.attempts, rewards, strict=True)], normalise=config.normalise
        )
        if by_turn.dropped:
            raise RowError(by_turn.dropped, "the attempts' turns have nothing to tell apart")
        return by_turn.values
    whole = group_advantages(rewards, normalise=config.normalise)
    if whole.dropped:
        raise RowError(whole.dropped, "the attempts' rewards have nothing to tell apart")
    spread: list[list[float | None]] = []
    for attempt, advantage in zip(group.attempts, whole.values, strict=True):
        if advantage is None:
            spread.append([None] * len(attempt.turns))
        elif level == "step":
            spread.append(
                list(step_advantages(advantage, [turn.reward for turn in attempt.turns], config.step_formula))
            )
        else:
            spread.append([advantage] * len(attempt.turns))
    return spread


def _turn_rewards(attempt: Trajectory, outcome: float | None) -> list[float | None]:
    """The rewards of the turns; what the attempt's own has beyond them is on the last, so that they add up to it.

    An attempt whose reward could not be told is not scored; one that has none has those of its turns alone.
    """
    rewards = [turn.reward for turn in attempt.turns]
    if outcome is None:
        return [None] * len(rewards) if attempt.rewards else rewards
    if rewards:
        rewards[-1] = (rewards[-1] or 0.0) + (outcome - sum(reward for reward in rewards if reward is not None))
    return rewards


def _before(part: GroupExample, now: Tensor) -> Tensor:
    return part.before[0].to(now.device) if part.before else now.detach()


def _sampled(parts: Sequence[GroupExample], before: Tensor, temperature: float) -> Tensor | None:
    """The sampler's log-probabilities; for a call without any, those before the update: nothing is corrected.

    Those at another temperature cannot be compared with the trainer's: they count as missing.
    """
    calls = [part.calls[0] for part in parts]
    values = [call.logprobs if call.logprobs_temperature == temperature else None for call in calls]
    if all(value is None for value in values):
        return None
    pieces = torch.split(before, [len(part.calls[0].completion_ids) for part in parts])
    return torch.cat([p if v is None else p.new_tensor(v) for p, v in zip(pieces, values, strict=True)])
