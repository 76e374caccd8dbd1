"""The contract as a test for authors: `bough env check NAME`.

the same task gives the same tasks, start and answers, twice here and once in another process
whatever the reply says, step answers it
two episodes at once do not disturb each other
a recorded episode can be replayed
close may be called at any moment, and twice
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bough.environments.base import Environment, Observation, check_reward
from bough.environments.isolated import shut_down
from bough.environments.replay import replay
from bough.types import Message, Task, Trajectory, Turn

TURNS = 6
# Replies that a model may well give: nothing, noise, half a tool call, far too much.
NONSENSE = (
    "",
    " \n\t",
    "\x00\x1b[31m😀 ١٢",
    '<tool_call>{"name": "x", "arguments": {',
    "THOUGHT: ACTION: action: click(",
    "a" * 100_000,
)


@dataclass
class CheckReport:
    """What was found. `problems` say where and what; `notes` are no problem."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def looking_at(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # an author's code fails in whatever way it likes
            self.problems.append(f"{what}: {type(error).__name__}: {error}")


async def check(environment_class: type[Environment], name: str, tasks: list[Task], *, seed: int = 0) -> CheckReport:
    """Plays a little with each task and reports every breach of the contract."""
    report = CheckReport()
    for task in tasks:
        with report.looking_at(f"task {task.id}"):
            await _check_task(environment_class, task, report, seed)
    with report.looking_at("another process"):
        await _check_other_process(name, environment_class, tasks[0], report)
    return report


async def _check_task(environment_class: type[Environment], task: Task, report: CheckReport, seed: int) -> None:
    recorded = await _record(environment_class, task, random.Random(seed))  # noqa: S311  no secret
    where = f"task {task.id}"
    with report.looking_at(f"{where}, replay"):
        await (await replay(environment_class, recorded)).close()
    with report.looking_at(f"{where}, two episodes at once"):
        await _check_interleaved(environment_class, recorded)
    with report.looking_at(f"{where}, nonsense"):
        await _check_nonsense(environment_class, task, report)
    with report.looking_at(f"{where}, close"):
        untouched = environment_class(task)
        await untouched.close()
        started = environment_class(task)
        await started.start()
        await started.close()
        await started.close()


async def _record(environment_class: type[Environment], task: Task, rng: random.Random) -> Trajectory:
    """A short episode: the expert's replies where there is an expert, else chance's."""
    environment = environment_class(task)
    try:
        start = _observed(await environment.start())
        turns = []
        for _ in range(TURNS):
            choices = sorted(environment.choices())
            reply = await environment.expert() or (environment.say(rng.choice(choices)) if choices else "Hello?")
            observation = _observed(await environment.step(reply))
            check_reward(environment, observation)
            message = Message(role="assistant", content=reply)
            turns.append(Turn(reply=message, observation=list(observation.messages), reward=observation.reward))
            if observation.done:
                break
    finally:
        await environment.close()
    if not start.messages or start.messages[-1].role == "assistant":
        raise ValueError("start must end with a message for the agent to answer")
    return Trajectory(id=task.id, task=task, start=list(start.messages), turns=turns)


async def _check_interleaved(environment_class: type[Environment], recorded: Trajectory) -> None:
    both = environment_class(recorded.task), environment_class(recorded.task)
    try:
        for environment in both:
            await environment.start()
        for number, turn in enumerate(recorded.turns, 1):
            for environment in both:
                observation = await environment.step(turn.reply.content)
                if list(observation.messages) != turn.observation:
                    raise ValueError(f"turn {number} answers differently while another episode runs")
    finally:
        await asyncio.gather(*(environment.close() for environment in both))


async def _check_nonsense(environment_class: type[Environment], task: Task, report: CheckReport) -> None:
    for reply in NONSENSE:
        environment = environment_class(task)
        try:
            await environment.start()
            observation = _observed(await environment.step(reply))
            check_reward(environment, observation)
        finally:
            await environment.close()
        if observation.success:
            report.problems.append(f"task {task.id}: the reply {reply!r:.40} is a success")
        if not observation.done and not observation.messages:
            report.problems.append(f"task {task.id}: the reply {reply!r:.40} gets no answer, and the episode goes on")


async def _check_other_process(
    name: str, environment_class: type[Environment], task: Task, report: CheckReport
) -> None:
    """Another process has another hash seed: what hangs on the order of a set shows there."""
    environment = environment_class(task)
    try:
        here = await environment.start()
    finally:
        await environment.close()
    code = "import sys; from bough.environments import check; check.print_start(sys.argv[1], sys.stdin.read())"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, name],
        input=task.model_dump_json(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        report.problems.append(f"another process: {done.stderr.strip().splitlines()[-1]}")
    elif json.loads(done.stdout.splitlines()[-1]) != _messages(here):
        report.problems.append(f"task {task.id}: another process sees another start")


def print_start(name: str, task: str) -> None:
    """What the environment `name` says at the start of a task given as JSON; the other process's part."""
    from bough.environments.registry import find

    async def start() -> list[Any]:
        environment_class = find(name)
        environment = environment_class(Task.model_validate_json(task))
        try:
            return _messages(await environment.start())
        finally:
            await environment.close()
            await shut_down(environment_class)

    print(json.dumps(asyncio.run(start())))


def _messages(observation: Observation) -> list[Any]:
    return [message.model_dump(mode="json") for message in observation.messages]


def _observed(observation: Any) -> Observation:
    if not isinstance(observation, Observation):
        raise TypeError(f"an Observation is expected, not a {type(observation).__name__}")
    return observation
