"""`bough.play`: an episode played by a person, or a list of actions played back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, JsonValue
from pydantic_core import to_json

from bough import event_loop
from bough.commands.objects import EnvironmentLike, environment_name
from bough.commands.table import Command
from bough.config.base import Config, setting
from bough.config.groups import EnvironmentConfig
from bough.config.keywords import make_config, settings_of
from bough.environments.base import Environment, Observation, configured, tasks_of
from bough.environments.isolated import Isolated, shut_down
from bough.environments.registry import find
from bough.errors import InputError
from bough.terminal import console
from bough.types import Task


class PlayedEnvironmentConfig(EnvironmentConfig):
    """Environment and tasks."""

    name: str = setting(
        flag="environment",
        positional=True,
        description="a name of `bough env list`, module:Class or path/to/file.py:Class",
    )


class PlayConfig(Config):
    """Lets you play in an environment, or replays actions from a file.

    At the prompt: type an action; an empty line lists the possible actions; Ctrl-D ends the episode.
    """

    environment: PlayedEnvironmentConfig
    seed: int = Field(0, ge=0, description="random seed of the tasks and of sampling")
    task: str | None = Field(None, description="the number of a task, counted from 0, or its id (default: the first)")
    game: Path | None = Field(None, description="a game file to play (household: an official game.tw-pddl)")
    actions: Path | None = Field(
        None, description="a file of actions, one per line, as plain text or JSON strings; - reads standard input"
    )
    json_lines: bool = Field(
        False,
        validation_alias=AliasChoices("json_lines", "json"),
        description="print one JSON object for the start and one for each step",
    )


# An id is searched for among this many tasks: there may be infinitely many.
TASKS_SEARCHED = 10_000
Tell = Callable[[int, Observation], None]


@settings_of(PlayConfig, "json_lines")
def play(environment: EnvironmentLike, actions: Sequence[str] | None = None, **settings: Any) -> list[Observation]:
    """Play one episode and return what the environment answered: its start, then one observation per action.

    `environment` is a name or a class. All of `actions` are played, also those after the
    end of the episode. Without them you are asked for each action, as in `bough play`: an
    empty line lists the possible ones, Ctrl-D ends the episode.
    """
    config = make_config(PlayConfig, "play", settings, environment=environment_name(environment), actions=None)
    if isinstance(actions, str) or not all(isinstance(action, str) for action in actions or ()):
        raise InputError("actions are a list of texts, one for each step")
    given = None if actions is None else list(actions)
    return event_loop.run(_play(config, given, lambda _, seen: print_observation(seen) if given is None else None))


def print_observation(observation: Observation) -> None:
    """What a person sees of a step."""
    out = console.out()
    out.print(console.printable(observation.text), markup=False)
    if observation.error:
        out.print(f"({observation.error})", style="red", markup=False)
    if observation.done:
        word = {True: "success", False: "failure", None: "over"}[observation.success]
        out.print(f"— {word}{f': {observation.stop}' if observation.stop else ''}", style="bold", markup=False)


async def _play(config: PlayConfig, actions: list[str] | None, tell: Tell) -> list[Observation]:
    """The episode of the settings, with these actions or a person's; `tell` gets each step as it happens."""
    environment_class = configured(find(config.environment.name), config.environment.options)
    environment = Isolated(environment_class, _task(environment_class, config))
    seen: list[Observation] = []
    try:
        seen.append(await environment.start())
        tell(0, seen[-1])
        while actions is not None or not seen[-1].done:
            action = await _next(environment, actions, len(seen))
            if action is None:
                break
            seen.append(await environment.step(await environment.say(action)))
            tell(len(seen) - 1, seen[-1])
    finally:
        await environment.close()
        await shut_down(environment_class)
    return seen


async def _next(environment: Isolated, actions: list[str] | None, number: int) -> str | None:
    """The next of the given actions (even after the end of the episode), or what the person types."""
    if actions is not None:
        return actions[number - 1] if number <= len(actions) else None
    while True:
        try:
            typed = (await asyncio.to_thread(input, "> ")).strip()
        except EOFError:
            return None
        if typed:
            return typed
        console.err().print("\n".join(await environment.choices()) or "Write an action.", style="dim", markup=False)


def _task(environment_class: type[Environment], config: PlayConfig) -> Task:
    options: dict[str, JsonValue] = dict(config.environment.options)
    if config.game is not None:
        if "games" not in environment_class.Options.model_fields:
            raise InputError(f"--game {config.game}: {environment_class.name} does not play game files")
        if not config.game.is_file():
            raise InputError(f"--game {config.game}: there is no such file")
        options["games"] = str(config.game)
    given = config.environment
    tasks = tasks_of(environment_class, options=options, split=given.split, task_file=given.task_file, seed=config.seed)
    wanted = config.task or "0"
    for number, task in enumerate(itertools.islice(tasks, TASKS_SEARCHED)):
        if wanted in (str(number), task.id):
            return task
    raise InputError(f"--task {wanted}: no task has that number or id")


# `bough play`: a person at the terminal, or actions from a file.


def play_command(config: PlayConfig) -> int:
    actions = list(_read_actions(config.actions)) if config.actions is not None else None

    def tell(step: int, observation: Observation) -> None:
        if not config.json_lines:
            print_observation(observation)
            return
        names = ("action", "reward", "progress", "terminated", "truncated", "success", "error", "stop")
        values = {name: getattr(observation, name) for name in names}
        row = {**observation.info, "step": step, "observation": observation.text, **values}
        sys.stdout.write(to_json(row, inf_nan_mode="null").decode() + "\n")
        sys.stdout.flush()

    event_loop.run(_play(config, actions, tell))
    return 0


def _read_actions(path: Path) -> Iterator[str]:
    """One action per line: plain text, a JSON string, or an object with "action" or "command"."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--actions {path}: cannot be read: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        value: Any = line.strip()
        if line[:1] in ("{", '"'):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
        if isinstance(value, dict):
            value = value.get("action", value.get("command"))
        if not isinstance(value, str):
            raise InputError(f'{path}:{number}: an action is text, or an object with "action" as text')
        yield value


COMMANDS = {
    "play": Command(
        PlayConfig,
        play_command,
        "  bough play household --seed 3\n  bough play household --game game.tw-pddl --actions actions.txt --json",
    ),
}
