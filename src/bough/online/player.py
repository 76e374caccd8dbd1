"""The player of online training: groups and held-out episodes, with the newest weights."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bough.calls.template import ChatTemplate
from bough.engines.chat import TemplateEngine
from bough.engines.local.draw import cuts
from bough.engines.local.engine import LocalEngine
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.environments.tasks import configured, tasks_of
from bough.errors import BoughError, InputError
from bough.event_loop import LoopRunner
from bough.methods.grpo import GRPOConfig
from bough.policy.policy import Policy
from bough.rewards.rubric import Rubric
from bough.rewards.score import score
from bough.rollouts.agents import ModelAgent
from bough.rollouts.collect import Attempt, attempts, collect
from bough.rollouts.rescore import sampled_calls
from bough.types import Group, Task, Trajectory

log = logging.getLogger(__name__)
# Calls whose distance from sampler and start policy is measured in each batch.
CALLS_MEASURED = 8


@dataclass(frozen=True)
class Played:
    """Groups of finished episodes, and the errors of lost ones: environment or engine failed even after all retries.

    `tasks_lost` counts tasks without any finished episode.
    """

    groups: list[Group] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    tasks_lost: int = 0

    @property
    def episodes(self) -> int:
        return sum(len(group.attempts) for group in self.groups)

    def __add__(self, other: Played) -> Played:
        return Played(self.groups + other.groups, self.lost + other.lost, self.tasks_lost + other.tasks_lost)


class LostError(BoughError):
    """Environment or engine failed too often: there is nothing to train on."""

    def __init__(self, played: Played) -> None:
        total = played.episodes + len(played.lost)
        super().__init__(f"{len(played.lost)} of {total} episodes were lost; {played.lost[0]}")


class Player:
    """The sampler over the policy in training. Call `renew` when the weights have changed."""

    def __init__(self, config: GRPOConfig, policy: Policy, template: ChatTemplate) -> None:
        assert config.environment.name is not None
        self.config, self.policy = config, policy
        self.environment_class = configured(find(config.environment.name), config.environment.options)
        self.rubric = Rubric(config.rewards, timeout_s=config.reward_timeout_s) if config.rewards else None
        self.reward = config.reward or ("total" if self.rubric else None)
        self._tokens = LocalEngine.of(policy, tokenizer=template.tokenizer, max_length=config.calls.max_length)
        self._engines = {
            temperature: TemplateEngine(
                self._tokens, template, config.sampling.model_copy(update={"temperature": temperature})
            )
            for temperature in {config.sampling.temperature, config.held_out.temperature}
        }
        if cuts(config.sampling):
            log.warning(
                "top_p, top_k or min_p limit which tokens are sampled, but the loss uses the probabilities over all "
                "tokens: training is slightly off-policy."
            )
        self._loop = LoopRunner()
        self._tasks = self._all_tasks(config.environment.split, config.environment.task_file)
        self._known: list[Task] = []

    def renew(self, step: int) -> None:
        self._tokens.renew(f"step-{step}")
        self._tokens.rest()

    def close(self) -> None:
        """Closes the sampler and the environment."""
        self._loop.run(self._tokens.close())
        self._loop.run(shut_down(self.environment_class))
        self._loop.close()

    def tasks(self, begin: int, count: int) -> list[Task]:
        """Tasks `begin` and on, from the first again where they run out; none twice."""
        while len(self._known) < begin + count and (task := next(self._tasks, None)) is not None:
            self._known.append(task)
        if not self._known:
            raise InputError("no task matches these settings")
        chosen = [self._known[number % len(self._known)] for number in range(begin, begin + count)]
        return list({task.id: task for task in chosen}.values())

    def groups(self, tasks: Sequence[Task], seed: int) -> Played:
        """Attempts at each task with the weights as they are, scored."""
        wanted = attempts(tasks, self.config.rollouts.group_size, seed)
        records, lost = self._play(wanted, self.config.sampling.temperature)
        if self.rubric is not None:
            records = self.rubric.score_all(records)
        by_task = [(task, [record for record in records if record.task.id == task.id]) for task in tasks]
        groups = [Group(task=task, attempts=members) for task, members in by_task if members]
        return Played(groups, _sentences(lost), len(tasks) - len(groups))

    def held_out(self) -> dict[str, Any]:
        """Success on tasks that are never trained on. Raises LostError if no episode could be finished."""
        held_out = self.config.held_out
        tasks = islice(self._all_tasks(held_out.split, held_out.task_file), held_out.tasks)
        records, lost = self._play(attempts(tasks, 1, self.config.seed), held_out.temperature)
        if lost and not records:
            raise LostError(Played(lost=_sentences(lost)))
        known = [record.success for record in records if record.success is not None]
        values: dict[str, Any] = {"eval_lost": len(lost)} if lost else {}
        return values | ({"eval_success": fmean(known), "eval_episodes": len(known)} if known else {})

    def numbers(self, groups: Sequence[Group], played: Sequence[Group]) -> dict[str, Any]:
        """What there is to say about a batch of groups, and about all that were `played` to find them.

        Reward and success are of all: without the tasks that always or never succeed any policy looks middling.
        """
        everyone = [attempt for group in played for attempt in group.attempts]
        members = [attempt for group in groups for attempt in group.attempts]
        turns = [turn for attempt in members for turn in attempt.turns]
        values = {
            "episodes": len(everyone),
            "reward": _mean(score(attempt, self.reward) for attempt in everyone),
            "success": _mean(attempt.success for attempt in everyone),
            "turns": _mean(len(attempt.turns) for attempt in members),
            "reply_tokens": _mean(len(turn.call.completion_ids) for turn in turns if turn.call),
            "errors": _mean(turn.error is not None for turn in turns),
        }
        for name in sorted({name for attempt in everyone for name in attempt.rewards}):
            values[f"reward/{name}"] = _mean(attempt.rewards.get(name) for attempt in everyone)
        return {name: value for name, value in values.items() if value is not None} | self._distances(members)

    def _distances(self, members: list[Trajectory]) -> dict[str, float]:
        """Between sampler and trainer, and between the policy and its start, on a few calls."""
        calls = sampled_calls(members, CALLS_MEASURED)
        if not calls:
            return {}
        with torch.no_grad():
            now = torch.cat([values.cpu() for values in self.policy.logprobs(calls)])
        sampled = torch.tensor([value for call in calls for value in call.logprobs or ()])
        distances = {"logprob_gap_max": float((now - sampled).abs().max()), "entropy": float(-now.mean())}
        if self.policy.has_adapter:
            with torch.no_grad(), self.policy.reference():
                start = torch.cat([values.cpu() for values in self.policy.logprobs(calls)])
            ratio = start - now
            distances["start_kl"] = float((ratio.exp() - ratio - 1).mean())
        return distances

    def _play(self, wanted: Iterable[Attempt], temperature: float) -> tuple[list[Trajectory], dict[str, str]]:
        """The finished episodes of these attempts, in their order, and the errors of the lost ones by their ids."""
        config, kept, order = self.config, [], list(wanted)

        async def play() -> dict[str, str]:
            tally = await collect(
                self.environment_class, ModelAgent(self._engines[temperature]), order,
                lambda record, _: kept.append(record),
                limits=config.limits, concurrency=config.rollouts.concurrency, retries=config.rollouts.retries,
            )  # fmt: skip
            return tally.lost

        lost = self._loop.run(play())
        for why, count in Counter(lost.values()).items():
            log.warning("%d of %d episodes are lost: %s", count, len(order), why)
        self._tokens.rest()
        place = {attempt.id: number for number, attempt in enumerate(order)}
        return sorted(kept, key=lambda record: place[record.id]), lost

    def _all_tasks(self, split: str, file: Path | None) -> Iterator[Task]:
        options, seed = self.config.environment.options, self.config.seed
        return tasks_of(self.environment_class, options=options, split=split, task_file=file, seed=seed)


def _sentences(lost: dict[str, str]) -> list[str]:
    return [f"{id}: {why}" for id, why in lost.items()]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
