"""`bough env check` for environments, and for agents that play by themselves.

An agent function or a taskset of verifiers has no step to check. Each of its tasks is played
against the recording endpoint with fixed replies in place of a model's, all at the same time.
Any reply must lead to a result, and nonsense must not be a success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bough import event_loop
from bough.config.play import EnvCheckConfig
from bough.config.rollouts import LimitsConfig
from bough.config.sampling import SamplingConfig
from bough.engines.base import Answer
from bough.environments import check
from bough.environments.check import NONSENSE, CheckReport
from bough.environments.isolated import shut_down
from bough.environments.own_agent import OwnAgent
from bough.environments.registry import find
from bough.environments.tasks import configured, first_tasks, tasks_of
from bough.rollouts.agents import ModelAgent
from bough.rollouts.own_agent import play_own
from bough.types import Message, Task

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
