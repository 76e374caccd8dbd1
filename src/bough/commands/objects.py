"""Inputs of a command: objects that a caller gives in place of a name, and whether what is named exists."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard, TypeVar

from bough.config.base import Config, flag, is_code, is_positional, leaves
from bough.config.groups import AGENT_PREFIX, BASELINES, is_server
from bough.curation.source import SourcedTrajectory, read_filed
from bough.data.base import IN_MEMORY, Sample
from bough.data.lines import files
from bough.data.writer import Writer
from bough.environments import given
from bough.environments.registry import find_listed, plugged_in
from bough.environments.rubric import REWARDS, name_of
from bough.errors import InputError
from bough.ledger import Ledger
from bough.models.resolve import check_name
from bough.types import Group, Pair, Trajectory

StrPath = str | os.PathLike[str]
Source = StrPath | Iterable[Sample | StrPath]
EnvironmentLike = str | type[Any]
AgentLike = str | Callable[..., Any]
RewardLike = str | Callable[..., Any]
Rewards = RewardLike | Sequence[RewardLike] | Mapping[Any, Any]


def environment_name(environment: EnvironmentLike) -> str:
    """The name by which the settings refer to an environment; a class is remembered under its own."""
    if isinstance(environment, str):
        return environment
    if not inspect.isclass(environment):
        kind = type(environment).__name__
        raise InputError(f"environment is a {kind} object; give the class itself, or the name of an environment")
    name = vars(environment).get("name") or environment.__name__
    installed = plugged_in().get(name)
    if installed is not None:
        if installed.value == f"{environment.__module__}:{environment.__qualname__}":
            return str(name)
        raise InputError(f"an installed environment is called {name!r} too; give your class another name = …")
    given.ENVIRONMENTS[name] = environment
    return str(name)


def agent_name(agent: AgentLike) -> str:
    """The name by which the settings refer to an agent function; a function is remembered under its own."""
    if isinstance(agent, str):
        return agent
    if not callable(agent) or inspect.isclass(agent):
        raise InputError(f"an agent is a function or the name of one, not a {type(agent).__name__}")
    name = getattr(agent, "__name__", type(agent).__name__)
    given.AGENTS[name] = agent
    return name


def where_to_play(environment: EnvironmentLike | None, agent: AgentLike | None) -> dict[str, Any]:
    """The settings that name an environment, or an agent function in its place."""
    named = {} if environment is None else {"environment": environment_name(environment)}
    return named if agent is None else {**named, "own_agent": agent_name(agent)}


def reward_weights(rewards: Rewards) -> dict[str, Any]:
    """Rewards by name with their weights; functions are remembered under their own names."""
    if isinstance(rewards, Mapping):
        return {_reward_name(reward): weight for reward, weight in rewards.items()}
    several = [rewards] if isinstance(rewards, str) or callable(rewards) else rewards
    return {_reward_name(reward): 1.0 for reward in several}


def _reward_name(reward: RewardLike) -> str:
    if isinstance(reward, str):
        return reward
    if not callable(reward):
        raise InputError(f"a reward is a name or a function, not a {type(reward).__name__}")
    name = name_of(reward)
    if name in REWARDS and REWARDS[name] is not reward:
        raise InputError(f"a built-in reward is called {name!r} too; give your function another name")
    given.REWARDS[name] = reward
    return name


def is_path(value: Any) -> TypeGuard[StrPath]:
    return isinstance(value, str | os.PathLike)


def file_of(source: Source | None) -> Path | None:
    """How the settings name data: by its path, or by a word for records in memory."""
    if source is None:
        return None
    return Path(source) if is_path(source) else Path(IN_MEMORY)


def in_memory(source: Source | None) -> list[Sample] | None:
    """Records that are in memory; None where the settings name a file, or there is none."""
    return None if source is None or is_path(source) else records_of(source)


def trajectories_of(sources: Iterable[Source], ledger: Ledger, *, format: str = "auto") -> list[SourcedTrajectory]:
    """Every trajectory of some files and records, with its place; what is not one is dropped into `ledger`."""
    found: list[SourcedTrajectory] = []
    number = 0
    for one in _each(sources):
        if is_path(one):
            found += read_filed([Path(one)], ledger, format=format)
            continue
        number += 1
        if isinstance(one, Pair):
            ledger.drop("wrong_kind")
            continue
        attempts = one.attempts if isinstance(one, Group) else [one]
        found += [SourcedTrajectory(trajectory, IN_MEMORY, number) for trajectory in attempts]
    if not found:
        raise InputError(f"there is no trajectory to work on; {ledger}")
    return found


def records_of(source: Source) -> list[Sample]:
    """Records in memory, as a list. A path among them is an InputError."""
    found = list(_each([source]))
    if paths := [one for one in found if is_path(one)]:
        raise InputError(f"{paths[0]!r} is a path among records; give either one path or records")
    return found


@contextmanager
def as_file(source: Source | None) -> Iterator[Path | None]:
    """A path to read `source` from: its own, or that of a temporary file with the records."""
    if source is None or is_path(source):
        yield None if source is None else Path(source)
        return
    found = records_of(source)
    if not found:
        raise InputError("there are no records: the list is empty")
    with TemporaryDirectory(prefix="bough-") as folder:
        path = Path(folder) / f"{IN_MEMORY}.jsonl"
        with Writer(path, batch=1024) as writer:
            for record in found:
                writer.write(record)
        yield path


def _each(sources: Iterable[Any]) -> Iterator[Any]:
    """The paths and records of some sources, one by one. Anything else is an InputError."""
    for source in sources:
        if is_path(source) or isinstance(source, Trajectory | Group | Pair):
            yield source
        elif isinstance(source, Iterable) and not isinstance(source, Mapping):
            yield from _each(source)
        else:
            raise InputError(
                f"a {type(source).__name__} is neither a path, nor a Trajectory, Pair or Group, nor a list of them; "
                "rows of other formats: write them to a JSON Lines file, and give its path"
            )


# A list of records as the API returns it: it prints as a summary, not as everything that is in it.

R = TypeVar("R")


class Records(list[R]):
    """Trajectories, pairs or groups.

    `report` has the numbers that the command line would print, `path` the file or folder
    where the records are on disk, None where no output was given.
    """

    def __init__(
        self, records: Iterable[R], summary: str, *, report: dict[str, Any] | None = None, path: Path | None = None
    ) -> None:
        super().__init__(records)
        self.summary, self.report, self.path = summary, report or {}, path

    def __repr__(self) -> str:
        where = f"\nin {self.path}" if self.path else ""
        return f"<{self.summary}{where}>"


class Facts(dict[str, Any]):
    """Named numbers or texts. It prints as two columns."""

    def __repr__(self) -> str:
        shown = {}
        for name, value in self.items():
            if isinstance(value, str | int | float):
                text = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
                shown[name.replace("_", " ")] = text
        width = max(map(len, shown), default=0)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in shown.items())


# Are the files, models, environments and clusters that a command names there? Checked before heavy imports: torch and
# transformers take seconds to import, and a misspelt path is reported without them. What the files contain is checked
# by the command itself.

# Settings that name data files or folders, and those that name a single file.
DATA = ("file", "train_file", "eval_file", "test_file", "also", "mix")
SINGLE_FILES = ("task_file", "test_task_file", "eval_task_file", "chat_template")


def check_inputs(config: Config) -> None:
    """InputError where an input is missing; several are reported together."""
    problems: list[str] = []

    def values(name: str) -> list[Any]:
        leaf = leaves(type(config)).get(name)
        value = leaf.of(config) if leaf else None
        several = list(value.values()) if isinstance(value, dict) else value
        return several if isinstance(several, list) else [] if several is None else [several]

    def try_out(check: Callable[[Any], Any], value: Any) -> None:
        try:
            check(value)
        except InputError as problem:
            problems.append(str(problem))

    for name in DATA:
        for path in values(name):
            try_out(files, path)
    for name in SINGLE_FILES:
        missing = [path for path in values(name) if not Path(path).is_file()]
        problems += [f"{flag(name)} {path}: there is no such file" for path in missing]
    for name in filter(None, values("environment")):  # evolve has none where fitness is measured on files
        if not is_code(name) and not name.startswith(AGENT_PREFIX):  # the command itself imports the user's own code
            try_out(find_listed, name)
    if values("engine") != ["openai"]:  # a server has models and adapters of its own
        leaf = leaves(type(config)).get("adapter")
        for path in [] if leaf is None or is_positional(leaf.info) else values("adapter"):
            if not Path(path).is_dir():
                problems.append(f"--adapter {path}: there is no such folder")
        for name in ("model", "by", "teacher"):
            for model in values(name):
                if model not in BASELINES and (name == "model" or not is_server(model)):
                    try_out(check_name, model)
    if problems:
        raise (
            InputError(*problems)
            if len(problems) == 1
            else InputError(f"{len(problems)} inputs cannot be used:", problems)
        )
    for address in values("cluster"):
        from bough.rollouts.ray import check_address

        check_address(address)
