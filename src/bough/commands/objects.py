"""What a caller may give in place of a name: environment classes, reward functions, trained models, records."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard, TypeVar

from bough.curation.source import SourcedTrajectory, read_filed
from bough.data.base import IN_MEMORY, Sample
from bough.data.writer import Writer
from bough.environments import given
from bough.environments.registry import plugged_in
from bough.environments.rubric import REWARDS, name_of
from bough.errors import InputError
from bough.ledger import Ledger
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
        elif isinstance(source, Iterable):
            yield from _each(source)
        else:
            raise InputError(
                f"a {type(source).__name__} is neither a path, nor a Trajectory, Pair or Group, nor a list of them"
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
