"""`bough env`: which worlds there are, whether one keeps the contract, what it needs."""

from __future__ import annotations

import asyncio
import inspect

from rich.table import Table

from bough.config.base import Config
from bough.config.play import EnvCheckConfig, EnvListConfig, EnvSetupConfig
from bough.environments.base import Environment
from bough.environments.check import Report, check
from bough.environments.isolated import shut_down
from bough.environments.registry import BUILT_IN, find, plugged_in
from bough.environments.tasks import configured, first_tasks, tasks_of
from bough.errors import InputError
from bough.terminal import console
from bough.types import Task


def list_all(config: EnvListConfig) -> int:
    if config.environment is not None:
        return _show(find(config.environment))
    table = Table("environment", "what", "max turns", box=None, pad_edge=False)
    for name in [*BUILT_IN, *plugged_in()]:
        try:
            kind = find(name)
            table.add_row(name, _about(kind), str(kind.max_turns))
        except InputError as error:
            table.add_row(name, f"cannot be used: {error}", "")
    console.out().print(table)
    return 0


def _show(kind: type[Environment]) -> int:
    out = console.out()
    out.print(f"{kind.name}: {inspect.getdoc(kind) or ''}\nat most {kind.max_turns} turns", markup=False)
    table = Table("option", "default", "what", box=None, pad_edge=False)
    options: type[Config] = kind.Options
    for name, info in options.model_fields.items():
        default = "" if info.is_required() else str(info.get_default(call_default_factory=True))
        table.add_row(name, default, info.description or "")
    if options.model_fields:
        out.print(table)
    return 0


def check_one(config: EnvCheckConfig) -> int:
    kind = configured(find(config.environment), config.options)
    wanted = tasks_of(kind, options=config.options, task_file=config.task_file, seed=config.seed)
    tasks = first_tasks(wanted, config.tasks)
    report = asyncio.run(_check(kind, config, tasks))
    out = console.out()
    for problem in report.problems:
        out.print(console.printable(problem), markup=False)
    played = "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
    if report.problems:
        out.print(f"{kind.name} breaks the contract in {played}; problems: {len(report.problems)}")
        return 2
    out.print(f"{kind.name} keeps the contract in {played}: determinism, replay, bad input, close")
    return 0


async def _check(kind: type[Environment], config: EnvCheckConfig, tasks: list[Task]) -> Report:
    try:
        return await check(kind, config.environment, tasks, seed=config.seed)
    finally:
        await shut_down(kind)


def setup(config: EnvSetupConfig) -> int:
    install = getattr(find(config.environment), "setup", None)
    if install is None:
        console.out().print(f"{config.environment} needs nothing besides its Python packages", markup=False)
        return 0
    for line in install():
        console.out().print(console.printable(line), markup=False)
    return 0


def _about(kind: type[Environment]) -> str:
    return (inspect.getdoc(kind) or "").split("\n", 1)[0]
