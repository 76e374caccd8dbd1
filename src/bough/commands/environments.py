"""`bough env`: which environments there are, whether one keeps the contract, what it needs."""

from __future__ import annotations

import inspect

from rich.table import Table

from bough.config.base import Config
from bough.config.play import EnvCheckConfig, EnvListConfig, EnvSetupConfig
from bough.environments.base import Environment, blame
from bough.environments.check import check_configured
from bough.environments.registry import find, plugged_in
from bough.errors import BoughError, InputError
from bough.terminal import console


def list_all(config: EnvListConfig) -> int:
    if config.environment is not None:
        return _show(find(config.environment))
    table = Table("environment", "what", "max turns", box=None, pad_edge=False)
    for name in plugged_in():
        try:
            environment_class = find(name)
            table.add_row(name, _about(environment_class), str(environment_class.max_turns))
        except InputError as error:
            table.add_row(name, f"cannot be used: {error}", "")
    console.out().print(table)
    return 0


def _show(environment_class: type[Environment]) -> int:
    out = console.out()
    out.print(f"{environment_class.name}: {inspect.getdoc(environment_class) or ''}", markup=False)
    out.print(f"at most {environment_class.max_turns} turns per episode", markup=False)
    table = Table("option", "default", "what", box=None, pad_edge=False)
    options: type[Config] = environment_class.Options
    for name, info in options.model_fields.items():
        default = "" if info.is_required() else str(info.get_default(call_default_factory=True))
        table.add_row(name, default, info.description or "")
    if options.model_fields:
        out.print(table)
    return 0


def check_one(config: EnvCheckConfig) -> int:
    report = check_configured(config, config.environment)
    out = console.out()
    for problem in report.problems:
        out.print(console.printable(problem), markup=False)
    played = "1 task" if report.num_tasks == 1 else f"{report.num_tasks} tasks"
    if report.problems:
        count = len(report.problems)
        problems = "1 problem" if count == 1 else f"{count} problems"
        out.print(f"{report.environment} breaks the contract: {problems} in {played}")
        return 2
    out.print(f"{report.environment} keeps the contract in {played}: determinism, replay, bad input, expert, close")
    return 0


def setup(config: EnvSetupConfig) -> int:
    install = getattr(find(config.environment), "setup", None)  # optional: a class method that yields progress lines
    if install is None:
        console.out().print(f"{config.environment} needs nothing besides its Python packages", markup=False)
        return 0
    try:
        for line in install():
            console.out().print(console.printable(line), markup=False)
    except (BoughError, OSError):
        raise
    except Exception as error:
        raise blame("setup", error) from error
    return 0


def _about(environment_class: type[Environment]) -> str:
    return (inspect.getdoc(environment_class) or "").split("\n", 1)[0]
