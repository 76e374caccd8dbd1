"""From a name to an environment class.

household                      an entry point of an installed package, in the group "bough.environments"
my_package.worlds:Guess        a class of an importable module
worlds/guess.py:Guess          a class of a file
agent:my_agent.py:play         the tasks of a user's own agent function (`own_agent`)
gymnasium:FrozenLake-v1        another library's environment, through an adapter (`bough.environments.adapters`)

Bough's own environments are entry points like those of any other package.
"""

from __future__ import annotations

import inspect
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar, cast

from pydantic import JsonValue

from bough.chat.tool_calls import Reply
from bough.config.base import is_code
from bough.config.groups import AGENT_PREFIX
from bough.environments import given
from bough.environments.base import Environment, EnvironmentFailedError, NoTasksError, Observation
from bough.environments.tools import ToolCallEnvironment
from bough.errors import InputError, describe_failure, did_you_mean, short_repr
from bough.files import json_digest
from bough.types import Task, ToolCall


@dataclass(frozen=True)
class Adapter:
    """One library. The module of its name has a function `adapt(name)` for what follows the colon of `form`."""

    form: str
    about: str
    # What the extra of its name installs.
    package: str

    @property
    def problem(self) -> str | None:
        """Why it cannot be used, if it cannot."""
        if find_spec(self.package) is not None:
            return None
        return f"{self.package} is not installed; run: pip install 'bough[{self.form.partition(':')[0]}]'"


ADAPTERS = {
    adapter.form.partition(":")[0]: adapter
    for adapter in (
        Adapter("gymnasium:ID", "Environments of Gymnasium with text or discrete actions.", "gymnasium"),
        Adapter("mcp:COMMAND or URL", "The tools of an MCP server; tasks and their checks come from a file.", "mcp"),
        Adapter("openenv:URL", "Environments on an OpenEnv server.", "websockets"),
        Adapter("textarena:GAME", "TextArena's games for one player.", "textarena"),
        Adapter("verifiers:TASKSET", "Tasksets of verifiers, played by one of its harnesses.", "verifiers"),
    )
}


@cache
def adapt(name: str) -> type[Environment] | None:
    """The environment class of `scheme:rest`; None where the scheme is not an adapter's.

    Raises InputError where its package is missing or has no such environment.
    """
    scheme, colon, rest = name.partition(":")
    adapter = ADAPTERS.get(scheme) if colon else None
    if adapter is None:
        return None
    if adapter.problem is not None:
        raise InputError(f"environment {name!r}: {adapter.problem}")
    if not rest.strip():
        raise InputError(f"environment {name!r} is incomplete; write {adapter.form}")
    return cast("type[Environment]", import_module(f"bough.environments.adapters.{scheme}").adapt(rest.strip()))


E = TypeVar("E", bound=Environment)


def subclass(base: type[E], about: str, **attributes: Any) -> type[E]:
    """The class of one environment of a library, with `about` as its description."""
    return type(base.__name__, (base,), {"__module__": base.__module__, "__doc__": about, **attributes})


# Tools on a server: what they are is known only once it was asked, and whatever it fails at is its own failure.


class RemoteToolEnvironment(ToolCallEnvironment):
    """Its `tools` are those that `offer` was called with."""

    def offer(self, tools: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """Sets the tools: the name, the description and the JSON schema of the parameters of each."""
        offered: dict[str, dict[str, Any]] = {}
        for name, description, parameters in tools:
            kinds = isinstance(name, str), isinstance(description, str), isinstance(parameters, dict)
            if not all(kinds) or not name or name in offered:
                raise EnvironmentFailedError(
                    f"the server offers the tool {short_repr(name)}; each needs a name of its own, "
                    "a description that is text, and a JSON schema of its parameters"
                )
            offered[name] = {"name": name, "description": description, "parameters": parameters}
        self.tools = tuple({"type": "function", "function": function} for function in offered.values())

    def _too_slow(self, call: ToolCall, limit_s: float) -> Exception:
        return EnvironmentFailedError(f"the server took longer than {limit_s:.3g} s to answer {call.name}")

    def timed_out(self) -> Observation | None:
        return None


# Tasks by seed: most other libraries know a task only as the seed of a reset.


def seeded_tasks(split: str, seed: int, data: Mapping[str, JsonValue]) -> Iterator[Task]:
    """An endless series of tasks that differ in their seed; each split has its own seeds."""
    rng = random.Random(f"{split} {seed}")  # noqa: S311  no secret
    number = 0
    while True:
        yield Task(id=f"{split}-{seed}-{number}", seed=rng.randrange(2**31), data=dict(data))
        number += 1


GROUP = "bough.environments"


def find(name: str) -> type[Environment]:
    """The environment class of that name, which the user gave. Raises InputError saying what was tried.

    A name read from a file goes to `find_listed`: this function runs the code that the name points to.
    """
    if name.startswith(AGENT_PREFIX):
        name = name.removeprefix(AGENT_PREFIX)
        function = given.AGENTS.get(name)
        if function is None:
            if not is_code(name):
                raise InputError(f"--agent {name}: name a function as module:function or path/to/file.py:function")
            function = load_code(name, f"--agent {name}", inspect.isfunction)
        return own_agent(function, _record_name(name))
    if not is_code(name):
        return find_listed(name)
    adapted = adapt(name)
    if adapted is None:
        adapted = load_code(
            name, f"environment {name!r}", lambda value: inspect.isclass(value) and hasattr(value, "step")
        )
    return _environment(adapted, name)


def find_listed(name: str) -> type[Environment]:
    """The environment that an installed package registers under that name. Files may name only these."""
    if (handed_in := given.ENVIRONMENTS.get(name)) is not None:
        return _environment(handed_in, name)
    if not is_code(name) and (adapted := adapt(name)) is not None:
        return _environment(adapted, name)
    if not (points := plugged_in()):
        raise InputError("no environment is registered, not even Bough's own: install it again (pip install -e .)")
    if name.endswith(".py"):
        raise InputError(f"environment {name!r} is a file; name its class too: {name}:Class")
    if name not in points:
        raise InputError(
            f"there is no environment {name!r}{did_you_mean(name, points)} "
            "(your own: module:Class or path/to/file.py:Class); "
            f"of other libraries: {', '.join(one.form for one in ADAPTERS.values())}"
        )
    try:
        found = points[name].load()
    except Exception as error:  # a plug-in may raise anything
        what = f"environment {name!r} cannot be loaded: {points[name].value}"
        raise InputError(describe_failure(what, error)) from error
    return _environment(found, name)


def plugged_in() -> dict[str, EntryPoint]:
    """The entry points of installed packages by name. Bough's own names cannot be taken over by another package."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value.startswith("bough.")))
    return {point.name: point for point in points}


def load_code(name: str, shown: str, fits: Callable[[Any], bool]) -> Any:
    """The class or function that `name`, module:NAME or file.py:NAME, points to.

    An error starts with `shown`, and suggests what `fits` in the same module.
    """
    # The last colon separates module and class; a Windows drive has one in front.
    place, _, attribute = name.rpartition(":")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else import_module(place)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything, and a script may exit
        raise InputError(describe_failure(f"{shown} cannot be loaded: {place}", error)) from error
    if not hasattr(module, attribute):
        fitting = [key for key, value in vars(module).items() if fits(value) and not key.startswith("_")]
        raise InputError(f"{shown}: {place} has no {attribute!r}{did_you_mean(attribute, fitting)}")
    return getattr(module, attribute)


def _module_of_file(given: Path) -> ModuleType:
    path = given.resolve()
    if not path.is_file():
        raise InputError(f"{given}: there is no such file")
    name = f"bough_environment_{path.stem}"
    if (known := sys.modules.get(name)) is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _environment(found: Any, name: str) -> type[Environment]:
    if not inspect.isclass(found):
        raise InputError(f"environment {name!r} is of type {type(found).__name__}; it must be a class")
    if missing := [method for method in ("start", "step") if not callable(getattr(found, method, None))]:
        raise InputError(f"environment {name!r} has no method {' and no '.join(missing)}")
    if not issubclass(found, Environment):
        # A class with start and step is an environment; the rest of the contract has defaults.
        found = type(found.__name__, (found, Environment), {"__module__": found.__module__, "__doc__": found.__doc__})
    if "name" not in vars(found) or not found.name:
        found.name = _record_name(name)
    environment: type[Environment] = found
    return environment


def _record_name(name: str) -> str:
    """The name as records keep it: of an absolute path only the last two parts."""
    return str(Path(*Path(name).parts[-2:])) if Path(name).is_absolute() else name


# The environments that installed packages register: what each is, and which options it has.


@dataclass(frozen=True)
class EnvironmentOption:
    """One option; `default` is None where it must be given."""

    name: str
    default: Any
    required: bool
    about: str


@dataclass(frozen=True)
class ListedEnvironment:
    """One environment. `problem` says why it cannot be used, if it cannot."""

    name: str
    about: str = ""
    max_turns: int | None = None
    options: tuple[EnvironmentOption, ...] = ()
    problem: str | None = None

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return self.about.partition("\n")[0]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_environments() -> list[ListedEnvironment]:
    """List the environments that can be named, with their options; one that cannot be loaded has a `problem`."""
    found = []
    for name in plugged_in():
        try:
            found.append(describe(name))
        except InputError as error:
            found.append(ListedEnvironment(name, problem=str(error)))
    return found


def describe(name: str) -> ListedEnvironment:
    """One environment: a registered name, module:Class or path/to/file.py:Class."""
    found: type[Environment] = find(name)
    options = []
    for option, info in found.Options.model_fields.items():
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        options.append(EnvironmentOption(option, default, info.is_required(), info.description or ""))
    return ListedEnvironment(found.name, inspect.getdoc(found) or "", found.max_turns, tuple(options))


# Packages of the operating system: installed by apt-get as root, or through sudo where it asks for no password.

# A server that does not answer costs seconds; another program that holds apt's lock is waited for.
PATIENCE = (
    "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20", "-o", "Acquire::Retries=1",
    "-o", "DPkg::Lock::Timeout=120",
)  # fmt: skip
NOT_ALLOWED = "apt-get installs packages only for root, or through sudo without a password"


def installer() -> list[str] | None:
    """The start of an apt-get command that may install packages here; None where there is none."""
    apt = ["apt-get"] if os.geteuid() == 0 else ["sudo", "-n", "apt-get"]
    return [*apt, *PATIENCE] if all(map(shutil.which, (apt[0], apt[-1]))) and _succeeds([*apt, "--version"]) else None


def install(apt: list[str], package: str) -> bool:
    """Whether the package was installed; its lists may be missing or old."""
    command = [*apt, "install", "--yes", "--no-install-recommends", package]
    if _succeeds(command):
        return True
    _succeeds([*apt, "update"])  # may fail for another list than the one that is needed
    return _succeeds(command)


def _succeeds(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(  # noqa: S603  fixed commands
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode == 0


# What an agent function may ask for, by the names of its parameters.
PARAMETERS = ("task", "base_url", "model", "seed")


class OwnAgent(Environment):
    """The tasks of a user's own agent: a function that plays a task by itself, against an OpenAI-compatible address.

        def play(task, base_url):       # or async def; by name: task, base_url, model, seed
            return reward               # a number, True or False, a mapping, or None where it is not known

        def tasks(split, seed): ...     # in the same module, or as play.tasks; or --task-file

    The function holds the conversation, calls its tools and judges the result. It takes the place of an
    environment, so that everything that plays tasks plays these too. `endpoint` is what serves it meanwhile
    (`bough.rollouts`).
    """

    shares_loop = True
    function: ClassVar[Callable[..., Any]]
    parameters: ClassVar[tuple[str, ...]]
    endpoint: ClassVar[Any] = None

    def start(self) -> Observation:
        raise EnvironmentFailedError(f"{self.name} is an agent: it plays by itself, there is no step to take")

    def step(self, reply: Reply) -> Observation:  # noqa: ARG002
        return self.start()

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterable[Task]:  # noqa: ARG003
        module = sys.modules.get(getattr(cls.function, "__module__", None) or "")
        make = getattr(cls.function, "tasks", None) or getattr(module, "tasks", None)
        if not callable(make):
            raise NoTasksError(
                f"{cls.name} has no tasks: define a function tasks(split, seed) beside it, or give --task-file"
            )
        wanted = inspect.signature(make).parameters
        given = {name: value for name, value in {"split": split, "seed": seed}.items() if name in wanted}
        return map(_as_task, make(**given))

    @classmethod
    async def shutdown(cls) -> None:
        endpoint, cls.endpoint = cls.endpoint, None
        if endpoint is not None:
            await endpoint.close()


def own_agent(function: Any, name: str) -> type[OwnAgent]:
    """The class of an agent function. Raises InputError where it cannot be called as one."""
    if not callable(function) or inspect.isclass(function):
        raise InputError(f"--agent {name} is of type {type(function).__name__}; it must be a function")
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    required = {one.name for one in parameters if one.name in named and one.default is one.empty}
    if strangers := sorted(required - set(PARAMETERS)):
        raise InputError(
            f"--agent {name} needs {strangers[0]!r}, which it is not given; its parameters may be "
            f"{', '.join(PARAMETERS)}, others need defaults"
        )
    if not takes_all and "base_url" not in named:
        raise InputError(f"--agent {name} does not take base_url, so it could not reach the model")
    wanted = tuple(one for one in PARAMETERS if one in named or takes_all)
    body = {"name": f"{AGENT_PREFIX}{name}", "function": staticmethod(function), "parameters": wanted}
    return type("OwnAgent", (OwnAgent,), {**body, "__module__": __name__, "__doc__": inspect.getdoc(function)})


def _as_task(given: Any) -> Task:
    """A task as it is; a mapping as a task with that data, named by it."""
    if isinstance(given, dict):
        return Task(id=json_digest(given, size=8), data=given)
    if not isinstance(given, Task):
        kind = type(given).__name__
        raise EnvironmentFailedError(
            f"tasks yielded a value of type {kind}; it must yield mappings or bough.Task objects"
        )
    return given
