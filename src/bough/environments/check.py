"""The contract as a test for authors: `bough env check NAME`.

the same task gives the same start and the same answers, twice in this process and once in another
step answers any reply
two episodes at the same time do not affect each other
a recorded episode can be replayed
the expert, if there is one, solves the task
close may be called at any time, and twice
"""

from __future__ import annotations

import asyncio
import json
import keyword
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from bough import event_loop
from bough.config.groups import OptionValues, ReportConfig
from bough.environments.base import Environment, Observation, configured, first_tasks, tasks_of
from bough.environments.isolated import Isolated, shut_down
from bough.environments.registry import OwnAgent, find
from bough.environments.replay import replay
from bough.environments.tools import raised_in
from bough.errors import BoughError, InputError
from bough.ledger import plural
from bough.types import Message, Task, Trajectory, Turn


class EnvCheckConfig(ReportConfig):
    """Checks an environment against the contract: determinism, replay, bad input, close."""

    environment: str = Field(
        description="a name of `bough env list`, module:Class or path/to/file.py:Class",
        json_schema_extra={"positional": True},
    )
    options: OptionValues = Field({}, description="options of the environment as key=value")
    task_file: Path | None = Field(
        None, description="a JSON Lines file of tasks, instead of the environment's own tasks"
    )
    tasks: int = Field(5, ge=1, description="number of tasks to check")
    seed: int = Field(0, ge=0, description="random seed of the tasks")


# Turns of an episode without an expert.
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


class ContractError(BoughError):
    """The environment breaks the contract."""


@dataclass
class CheckReport:
    """What was found: each problem with the places where it occurs."""

    environment: str
    num_tasks: int
    found: dict[str, list[str]] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """Each problem once, with the first place and how many more there are."""
        return [
            f"{places[0]}: {what}" + (f"\n  the same: {', '.join(places[1:])}" if places[1:] else "")
            for what, places in self.found.items()
        ]

    def add(self, place: str, what: str) -> None:
        self.found.setdefault(what, []).append(place)

    def add_raised(self, place: str, observation: Observation) -> None:
        """An agent reads what a tool raised and continues; the author must know of it."""
        for one in raised_in(observation.info):
            self.add(place, one.failure)

    @contextmanager
    def looking_at(self, place: str) -> Iterator[None]:
        try:
            yield
        except BoughError as error:
            self.add(place, str(error))


def check_configured(config: EnvCheckConfig, name: str | None) -> CheckReport:
    """The environment of the settings, checked on its first tasks. Raises InputError for an agent function."""
    environment_class = configured(find(config.environment), config.options)
    if issubclass(environment_class, OwnAgent):
        raise InputError(
            f"{environment_class.name} plays by itself: it has no step to check; try it with bough collect"
        )
    wanted = tasks_of(environment_class, options=config.options, task_file=config.task_file, seed=config.seed)
    tasks = first_tasks(wanted, config.tasks)

    async def checked() -> CheckReport:
        try:
            return await check(environment_class, name, tasks, seed=config.seed)
        finally:
            await shut_down(environment_class)

    return event_loop.run(checked())


async def check(
    environment_class: type[Environment], name: str | None, tasks: list[Task], *, seed: int = 0
) -> CheckReport:
    """Plays a few episodes of each task and reports every violation of the contract.

    `name` is how another process finds the class; without one it is tested in this process only.
    """
    report = CheckReport(environment_class.name, len(tasks))
    for task in tasks:
        with report.looking_at(f"task {task.id}"):
            recorded = await _record(environment_class, task, report, random.Random(seed))  # noqa: S311  no secret
            await _check_again(environment_class, recorded, report)
    if name is not None:
        with report.looking_at("another process"):
            await _check_other_process(name, environment_class, tasks[0])
    return report


async def _record(
    environment_class: type[Environment], task: Task, report: CheckReport, rng: random.Random
) -> Trajectory:
    """An episode: the expert's until it ends, or a few random actions."""
    turns: list[Turn] = []
    async with _opened(environment_class, task) as environment:
        start = await environment.start()
        if not start.messages or start.messages[-1].role == "assistant":
            raise ContractError("start must end with a message for the agent to answer")
        first = await environment.expert()
        last = start
        while len(turns) < (environment_class.max_turns if first is not None else TURNS) and not last.done:
            reply = await environment.expert() if turns else first
            if not reply:
                choices = sorted(await environment.choices())
                reply = await environment.say(rng.choice(choices)) if choices else "Hello?"
            last = await environment.step(reply)
            report.add_raised(f"task {task.id}", last)
            message = Message(role="assistant", content=reply)
            turns.append(Turn(reply=message, observation=list(last.messages), reward=last.reward))
    if first is not None and (not last.done or last.success is False):
        count = plural(len(turns), "turn")
        ended = f"{'fails' if last.done else 'has not finished'} after {count}"
        if last.error is not None:
            answer = last.messages[-1].content[:200] if last.messages else last.error
            ended += f"; its last reply was invalid: {answer}"
        report.add(f"task {task.id}", f"the expert does not solve the task: it {ended}")
    return Trajectory(id=task.id, task=task, start=list(start.messages), turns=turns)


async def _check_again(environment_class: type[Environment], recorded: Trajectory, report: CheckReport) -> None:
    """More episodes of a task: a replay, two at the same time, with nonsense, closed early and twice."""
    task, where = recorded.task, f"task {recorded.task.id}"
    with report.looking_at(f"{where}, replay"):
        await (await replay(lambda task: Isolated(environment_class, task), recorded)).close()
    with report.looking_at(f"{where}, two episodes at the same time"):
        async with _opened(environment_class, task) as one, _opened(environment_class, task) as other:
            for environment in (one, other):
                await environment.start()
            for number, turn in enumerate(recorded.turns, 1):
                for environment in (one, other):
                    if list((await environment.step(turn.reply)).messages) != turn.observation:
                        raise ContractError(f"turn {number} is answered differently while another episode runs")
    with report.looking_at(f"{where}, nonsense"):
        for reply in NONSENSE:
            async with _opened(environment_class, task) as environment:
                await environment.start()
                observation = await environment.step(reply)
            report.add_raised(f"{where}, nonsense", observation)
            if observation.success:
                report.add(where, f"the reply {reply!r:.40} is a success")
            if not observation.done and not observation.messages:
                report.add(where, f"the reply {reply!r:.40} gets no answer, and the episode continues")
    with report.looking_at(f"{where}, close"):  # each block closes the environment at its end
        async with _opened(environment_class, task) as environment:
            await environment.make()
        async with _opened(environment_class, task) as environment:
            await environment.start()
            await environment.release()


async def _check_other_process(name: str, environment_class: type[Environment], task: Task) -> None:
    """Another process has another hash seed, which shows what depends on the order of a set."""
    here = await _start(environment_class, task)
    code = "import sys; from bough.environments import check; check.print_start(sys.argv[1], sys.stdin.read())"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, name],
        input=task.model_dump_json(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ContractError(done.stderr.strip())
    if json.loads(done.stdout.splitlines()[-1]) != here:
        raise ContractError(f"the start of task {task.id} differs from the start in this process")


def print_start(name: str, task: str) -> None:
    """Prints the start of a task given as JSON; runs in the other process."""

    async def start() -> list[Any]:
        environment_class = find(name)
        try:
            return await _start(environment_class, Task.model_validate_json(task))
        finally:
            await shut_down(environment_class)

    try:
        print(json.dumps(asyncio.run(start())))
    except BoughError as error:
        sys.exit(str(error))


async def _start(environment_class: type[Environment], task: Task) -> list[Any]:
    async with _opened(environment_class, task) as environment:
        return [message.model_dump(mode="json") for message in (await environment.start()).messages]


@asynccontextmanager
async def _opened(environment_class: type[Environment], task: Task) -> AsyncIterator[Isolated]:
    environment = Isolated(environment_class, task)
    try:
        yield environment
    except BaseException:
        await environment.close()
        raise
    await environment.close(strict=True)


# A new environment as files to change: the class, its test and a recipe that trains in it.

ENVIRONMENT = '''"""TITLE: the agent buys what a list asks for. Change all of it."""

import random

from bough import Task, ToolEnvironment, ToolError


class CLASS(ToolEnvironment):
    """Buy what the list asks for."""

    max_turns = 8

    @classmethod
    def tasks(cls, options, *, split="train", seed=0):
        """The same split and seed give the same tasks. A task's data fixes the start of the episode."""
        rng = random.Random(f"{split} {seed}")
        for number in range(1000):
            item, count = rng.choice(["apple", "pear", "plum"]), rng.randint(1, 5)
            yield Task(id=f"{split}-{seed}-{number}", data={"item": item, "count": count})

    def start(self):
        """What the agent is told first."""
        self.item, self.count, self.basket = self.task.data["item"], self.task.data["count"], []
        return f"Buy {self.count} {self.item}, one at a time."

    def buy(self, item: str) -> str:
        """Buys one item.

        Args:
            item: What to buy.
        """
        if item not in ("apple", "pear", "plum"):
            raise ToolError(f"there is no {item}.")
        self.basket.append(item)
        return f"Bought one {item}. The basket has {len(self.basket)}."

    def success(self):
        """Ends the episode as soon as it is true; a reply without a tool call ends it too."""
        return self.basket == [self.item] * self.count

    def expert(self):
        """The reply of an agent that solves the task: demonstrations for free. Leave it out if there is none."""
        return self.call("buy", item=self.item)
'''

TEST = '''"""Run it with: pytest MODULE"""

from pathlib import Path

import bough

ENVIRONMENT = f"{Path(__file__).with_name('MODULE.py')}:CLASS"


def test_the_contract_is_kept():
    assert bough.check(ENVIRONMENT, tasks=2).problems == []


def test_the_expert_wins():
    played = bough.collect("expert", ENVIRONMENT, tasks=4)
    assert all(trajectory.success for trajectory in played)


def test_a_wrong_item_is_refused():
    start, refused = bough.play(ENVIRONMENT, ["buy('stone')"])
    assert refused.error == "invalid_action" and "there is no stone" in refused.text
'''

RECIPE = """# Files cannot name code, so the environment is given on the command line:
#   bough run MODULE/recipe.yaml --set defaults.environment=MODULE/MODULE.py:CLASS
name: MODULE
about: Learns from the expert of MODULE.py.
model: smollm2
defaults:
  limits: {max_turns: 6, max_errors: 2}
  sampling: {max_new_tokens: 64}
stages:
  - eval: {name: base, tasks: 40, split: unseen}
  - collect: {name: demonstrations, model: expert, tasks: 100}
  - demos:
  - sft: {max_steps: 40, batch_size: 4, learning_rate: 5.0e-4}
  - eval: {name: after-sft, tasks: 40, split: unseen}
"""


def new_environment(name: str, parent: Path) -> tuple[list[Path], list[str]]:
    """Writes a new environment into a folder of its name: the files, and the commands that use them.

    Raises InputError where the folder exists.
    """
    module = name.replace("-", "_").lower()
    if not module.isidentifier() or not module.isascii() or keyword.iskeyword(module):
        raise InputError(f"{name!r} cannot be the name of an environment: use letters, digits, dashes and underscores")
    title = "".join(part.capitalize() for part in module.split("_"))
    folder = parent / module
    if folder.exists():
        raise InputError(f"{folder} exists; choose another name, or another folder with --output")
    folder.mkdir(parents=True)
    contents = {f"{module}.py": ENVIRONMENT, f"test_{module}.py": TEST, "recipe.yaml": RECIPE}
    for file, text in contents.items():
        filled = text.replace("MODULE", module).replace("CLASS", title).replace("TITLE", title)
        (folder / file).write_text(filled)
    environment = f"{folder / module}.py:{title}"
    commands = [
        f"bough env check {environment}",
        f"pytest {folder}",
        f"bough run {folder / 'recipe.yaml'} --set defaults.environment={environment}",
    ]
    return [folder / file for file in contents], commands
