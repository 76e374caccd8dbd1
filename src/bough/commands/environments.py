"""`bough env`: which environments there are, whether one keeps the contract, a new one, what one needs."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from rich.markup import escape
from rich.table import Table

from bough.commands.table import Command
from bough.config.groups import ReportConfig
from bough.config.yaml_file import write_value
from bough.environments.base import blame
from bough.environments.check import EnvCheckConfig, check_configured, new_environment
from bough.environments.registry import ADAPTERS, ListedEnvironment, describe, find, list_environments
from bough.errors import BoughError
from bough.ledger import plural
from bough.terminal import console


class EnvListConfig(ReportConfig):
    """Lists the environments, or the options of one of them."""

    environment: str | None = Field(
        None, description="show the options of this environment", json_schema_extra={"positional": True}
    )


class EnvNewConfig(ReportConfig):
    """Writes the files of a new environment: the class, its test and a recipe that trains in it."""

    name: str = Field(description="name of the environment, such as shop", json_schema_extra={"positional": True})
    output: Path = Field(Path(), description="folder in which a folder of that name is made")


class EnvSetupConfig(ReportConfig):
    """Installs what an environment needs besides Python packages (web: a browser)."""

    environment: str = Field(description="the environment", json_schema_extra={"positional": True})


def list_all(config: EnvListConfig) -> int:
    if config.environment is not None:
        return _show(describe(config.environment), config.as_json)
    found = list_environments()
    if config.as_json:
        adapters = {one.form: {"about": one.about, "problem": one.problem} for one in ADAPTERS.values()}
        console.print_json({"environments": [one.to_json() for one in found], "adapters": adapters})
        return 0
    table = Table("environment", "what", "max turns", box=None, pad_edge=False)
    for one in found:
        if one.problem is None:
            table.add_row(one.name, one.summary, str(one.max_turns))
        else:
            table.add_row(one.name, escape(f"cannot be used: {one.problem}"), "")
    for adapter in ADAPTERS.values():
        table.add_row(adapter.form, escape(adapter.about if adapter.problem is None else adapter.problem), "")
    console.out().print(table)
    return 0


def _show(environment: ListedEnvironment, as_json: bool) -> int:
    if as_json:
        console.print_json(environment.to_json())
        return 0
    out = console.out()
    out.print(f"{environment.name}: {environment.about}", markup=False)
    if environment.max_turns is not None:
        out.print(f"at most {plural(environment.max_turns, 'turn')} per episode")
    table = Table("option", "default", "what", box=None, pad_edge=False)
    for option in environment.options:
        default = "required" if option.required else write_value(option.default)
        table.add_row(option.name, escape(default), escape(option.about))
    if environment.options:
        out.print(table)
    return 0


def check_one(config: EnvCheckConfig) -> int:
    report = check_configured(config, config.environment)
    if config.as_json:
        about = {"environment": report.environment, "tasks": report.num_tasks}
        console.print_json(about | {"ok": not report.found, "found": report.found})
        return 2 if report.found else 0
    out = console.out()
    for problem in report.problems:
        out.print(console.printable(problem), markup=False)
    played = plural(report.num_tasks, "task")
    if report.problems:
        problems = plural(len(report.problems), "problem")
        out.print(f"{report.environment} breaks the contract: {problems} in {played}")
        return 2
    out.print(f"{report.environment} keeps the contract in {played}: determinism, replay, bad input, expert, close")
    return 0


def new(config: EnvNewConfig) -> int:
    files, commands = new_environment(config.name, config.output)
    if config.as_json:
        console.print_json({"files": list(map(str, files)), "commands": commands})
        return 0
    lines = [*(f"wrote {file}" for file in files), "Check it, test it and train in it:"]
    lines += [f"  {command}" for command in commands]
    console.out().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    return 0


def setup(config: EnvSetupConfig) -> int:
    install = getattr(find(config.environment), "setup", None)  # optional: a class method that yields progress lines
    lines = []
    try:
        for line in install() if install is not None else ():
            lines.append(line)
            (console.err() if config.as_json else console.out()).print(console.printable(line), markup=False)
    except (BoughError, OSError):
        raise
    except Exception as error:
        raise blame("setup", error) from error
    if config.as_json:
        console.print_json({"environment": config.environment, "needs_setup": install is not None, "lines": lines})
    elif install is None:
        console.out().print(f"{config.environment} needs nothing besides its Python packages", markup=False)
    return 0


COMMANDS = {
    "env list": Command(EnvListConfig, list_all, "  bough env list\n  bough env list household"),
    "env check": Command(
        EnvCheckConfig,
        check_one,
        "  bough env check examples/guess_number.py:GuessNumber\n  bough env check web --options pages=click-button",
    ),
    "env new": Command(EnvNewConfig, new, "  bough env new shop"),
    "env setup": Command(EnvSetupConfig, setup, "  bough env setup web"),
}
