"""How far the sampler's log-probabilities are from the trainer's, measured on calls that were just played.

The two compute the same numbers in other ways (a cache against a whole row, often in
bfloat16); what is left between them is what importance sampling has to make good.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from bough import event_loop
from bough.config.groups import LimitsConfig, SamplingConfig
from bough.engines.base import Answer
from bough.environments import check
from bough.environments.check import NONSENSE, CheckReport, EnvCheckConfig
from bough.environments.isolated import shut_down
from bough.environments.registry import OwnAgent, find
from bough.environments.tasks import configured, first_tasks, tasks_of
from bough.rollouts.agents import Agent, ModelAgent
from bough.rollouts.episode import play_own
from bough.types import Call, Message, Task, Trajectory

if TYPE_CHECKING:
    from bough.policy.policy import Policy


@dataclass(frozen=True)
class Rescored:
    """The trainer's log-probabilities of sampled replies, by episode and turn, and the gap in numbers."""

    logprobs: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)


def rescore(agent: Agent, trajectories: Iterable[Trajectory], count: int) -> Rescored:
    """Asks again for up to `count` calls; nothing where no model in this process played, or none are wanted."""
    engine = agent.engine if isinstance(agent, ModelAgent) else None
    policy: Policy | None = getattr(engine, "scorer", None)
    chosen = _spread(trajectories, count)
    if policy is None or not chosen:
        return Rescored()
    calls = [call for _, _, call in chosen]
    found = trained_logprobs(policy, calls)
    by_episode: dict[str, dict[int, list[float]]] = {}
    for (episode, turn, _), values in zip(chosen, found, strict=True):
        by_episode.setdefault(episode, {})[turn] = values
    return Rescored(by_episode, logprob_gap(calls, found))


def sampled_calls(trajectories: Iterable[Trajectory], count: int) -> list[Call]:
    """Up to `count` calls with sampled log-probabilities, spread evenly over the episodes."""
    return [call for _, _, call in _spread(trajectories, count)]


def _spread(trajectories: Iterable[Trajectory], count: int) -> list[tuple[str, int, Call]]:
    """Goes through the trajectories twice, so that only what is chosen is held in memory."""
    total = sum(1 for _ in _calls(trajectories)) if count > 0 else 0
    return list(islice(_calls(trajectories), 0, None, max(1, total // count)))[:count] if total else []


def _calls(trajectories: Iterable[Trajectory]) -> Iterator[tuple[str, int, Call]]:
    for trajectory in trajectories:
        for number, turn in enumerate(trajectory.turns):
            if turn.call is not None and turn.call.logprobs and turn.call.completion_ids:
                yield trajectory.id, number, turn.call


def trained_logprobs(policy: Policy, calls: list[Call]) -> list[list[float]]:
    """What training would compute for the answered tokens of each call."""
    import torch

    with torch.no_grad():
        return [values.tolist() for values in policy.logprobs(calls)]


def logprob_gap(calls: list[Call], trained: list[list[float]]) -> dict[str, Any]:
    """The mean and the largest absolute difference over the answered tokens of `calls`, which were sampled."""
    gaps = [
        abs(new - old)
        for call, values in zip(calls, trained, strict=True)
        for new, old in zip(values, call.logprobs or (), strict=True)
    ]
    return {
        "rescored_tokens": len(gaps),
        "logprob_gap_mean": math.fsum(gaps) / len(gaps),
        "logprob_gap_max": max(gaps),
    }


# `bough env check` for environments, and for agents that play by themselves.
# An agent function or a taskset of verifiers has no step to check. Each of its tasks is played against the recording
# endpoint with fixed replies in place of a model's, all at the same time. Any reply must lead to a result, and
# nonsense must not be a success.

CHECKED = "bad input, episodes at the same time"


def check_configured(config: EnvCheckConfig, name: str | None) -> CheckReport:
    """The environment or agent of the settings, checked on its first tasks."""
    environment_class = configured(find(config.environment), config.options)
    if not issubclass(environment_class, OwnAgent):
        return check.check_configured(config, name)
    wanted = tasks_of(environment_class, options=config.options, task_file=config.task_file, seed=config.seed)
    return event_loop.run(_checked(environment_class, first_tasks(wanted, config.tasks), config.seed))


async def _checked(agent_class: type[OwnAgent], tasks: list[Task], seed: int) -> CheckReport:
    report = CheckReport(agent_class.name, len(tasks), checked=CHECKED)
    try:
        for task in tasks:
            await asyncio.gather(*(_play(agent_class, task, reply, report, seed) for reply in NONSENSE))
    finally:
        await shut_down(agent_class)
    return report


async def _play(agent_class: type[OwnAgent], task: Task, reply: str, report: CheckReport, seed: int) -> None:
    agent = ModelAgent(_FixedReplies(reply))
    where = f"task {task.id}"
    with report.looking_at(where):
        played = await play_own(agent_class, task, agent, id=task.id, seed=seed, limits=LimitsConfig())
        if played.success:
            report.add(where, f"the reply {reply!r:.40} is a success")


class _FixedReplies:
    """An engine without a model."""

    name = "fixed replies"

    def __init__(self, reply: str) -> None:
        self.reply = reply
        self.sampling = SamplingConfig()

    def open(self, episode: str, *, seed: int) -> _FixedChat:  # noqa: ARG002
        return _FixedChat(self.reply)

    async def close(self) -> None:
        return


@dataclass(frozen=True)
class _FixedChat:
    reply: str

    async def answer(
        self,
        messages: list[Message],  # noqa: ARG002
        tools: list[dict[str, Any]],  # noqa: ARG002
        *,
        sampling: SamplingConfig | None = None,  # noqa: ARG002
        seed: int | None = None,  # noqa: ARG002
        on_text: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> Answer:
        return Answer(Message(role="assistant", content=self.reply), None, "stop")

    def close(self) -> None:
        return
