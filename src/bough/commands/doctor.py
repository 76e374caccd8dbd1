"""`bough.doctor` and `bough.check`: is the data fit to train on, and does an environment keep its contract?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from bough.chat.diagnosis import Diagnosis, DoctorConfig, diagnose
from bough.chat.template import CallBuilder
from bough.commands.models import ModelLike, model_name
from bough.commands.objects import EnvironmentLike, Source, as_file, environment_name
from bough.commands.table import Command
from bough.config.keywords import make_config, settings_of
from bough.data.transcript import coloured
from bough.environments.check import CheckReport, EnvCheckConfig, check_configured
from bough.ledger import plural
from bough.policy.load import load_call_builder
from bough.terminal import console
from bough.types import Call


class Checkup:
    """What `bough.doctor` found. `ok` is False where training on the data would be a mistake."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.report: dict[str, Any] = diagnosis.to_json()
        self.findings = list(diagnosis.findings())
        self._diagnosis = diagnosis

    @property
    def ok(self) -> bool:
        return all(finding.level != "fail" for finding in self.findings)

    def __repr__(self) -> str:
        trained, context = (self._diagnosis.tokens[name] for name in ("trained", "context"))
        tokens = f"{trained:,} tokens trained, {context:,} of context"
        findings = [f"{one.level.upper()} {one.name}: {one.message}" for one in self.findings]
        return "\n".join(
            [
                str(self._diagnosis.calls),
                tokens,
                *(findings or ["OK: only replies are trained, and each ends its turn"]),
            ]
        )


@settings_of(DoctorConfig, "file")
def doctor(records: Source, model: ModelLike = "smollm2", **settings: Any) -> Checkup:
    """Count the tokens that a model would be trained on, and say what is wrong with them.

    `records` are in memory or the path of a data file; `model` gives the chat template.
    """
    with as_file(records) as file:
        config = make_config(DoctorConfig, "doctor", settings, file=file, model=model_name(model))
        diagnosis = diagnose(config, _builder(config), place_of=lambda place: f"{Path(place.file).name}:{place.line}")
    return Checkup(diagnosis)


def _builder(config: DoctorConfig) -> CallBuilder:
    calls = config.calls
    return load_call_builder(config.model, calls.chat_template, max_length=calls.max_length, stride=calls.stride)


@settings_of(EnvCheckConfig)
def check(environment: EnvironmentLike, **settings: Any) -> CheckReport:
    """Test an environment of your own against the contract; `problems` of the result is empty if it keeps it.

    `environment` is a name or a class. A class that another process cannot import, such as
    one of a notebook, is tested in this process only.
    """
    config = make_config(EnvCheckConfig, "check", settings, environment=environment_name(environment))
    elsewhere = environment if isinstance(environment, str) else importable_name(environment)
    return check_configured(config, elsewhere)


def importable_name(environment_class: type[Any]) -> str | None:
    """The name by which another process finds the class; None for one of a notebook, or inside a function."""
    module = sys.modules.get(environment_class.__module__)
    if module is None or "<locals>" in environment_class.__qualname__:
        return None
    file = getattr(module, "__file__", None)
    if environment_class.__module__ == "__main__":
        return f"{file}:{environment_class.__qualname__}" if file else None
    return f"{environment_class.__module__}:{environment_class.__qualname__}"


# `bough doctor`: which tokens of a data file would be trained, and what is wrong with the file.


def doctor_command(config: DoctorConfig) -> int:
    """Prints the samples, the counts and the findings; exit 2 if a finding is a failure."""
    out, builder, left = console.out(), _builder(config), 0 if config.as_json else config.samples
    with console.progress(f"tokenising {config.source.file.name}", total=config.limit) as bar:

        def seen(place: str, calls: list[Call]) -> None:
            nonlocal left
            if left:
                left -= 1
                out.rule(console.printable(place), style="dim")
                for text in coloured(calls, builder.template.tokenizer):
                    out.print(text)
            bar.advance(bar.task_ids[0])

        diagnosis = diagnose(config, builder, seen)
    findings, limited = list(diagnosis.findings()), diagnosis.rows.kept == config.limit
    failed = any(finding.level == "fail" for finding in findings)
    if config.as_json:
        about = {"file": str(config.source.file), "model": config.model, "ok": not failed}
        console.print_json(about | diagnosis.to_json() | {"limited": limited})
        return 2 if failed else 0
    _print_counts(diagnosis, limited=limited)
    for finding in findings:
        style = "bold red" if finding.level == "fail" else "bold yellow"
        text = f"{finding.level.upper()} {finding.name}: {finding.message}"
        out.print(console.printable(text), style=style, markup=False)
    if not failed and not diagnosis.rows.dropped and not diagnosis.calls.dropped:
        out.print("OK: nothing is dropped, only answers are trained, and every answer ends its turn", style="green")
    return 2 if failed else 0


def _print_counts(diagnosis: Diagnosis, *, limited: bool) -> None:
    tokens, template, rows = diagnosis.tokens, diagnosis.builder.template, diagnosis.rows
    given, bad, computed = tokens["turns given as context"], tokens["labelled bad"], tokens["computed"]
    raw = tokens["trained"] + tokens["context"]
    lines = {
        "end of turn": f"{console.printable(template.end_of_turn)} (token {template.end_of_turn_id})",
        "tools": "in the template's own format" if template.knows_tools else "in Hermes tags: the template has none",
        "rows": f"{rows}; stopped at --limit {rows.kept}" if limited else str(rows),
        "calls": str(diagnosis.calls),
        "shortened": f"{plural(diagnosis.shortened, 'call loses', 'calls lose')} the oldest steps to fit max_length"
        if diagnosis.shortened
        else "",
        "context only": f"{plural(given, 'reply is', 'replies are')} marked as not trained" if given else "",
        "tokens trained": f"{tokens['trained']:,}",
        "  labelled bad": f"{bad:,} of them: KTO makes these replies less likely, SFT drops them" if bad else "",
        "tokens of context": f"{tokens['context']:,}",
        "tokens computed": f"{computed:,} as a tree ({raw / computed:.1f}× fewer than {raw:,})" if computed else "",
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, text in lines.items():
        if text:
            table.add_row(name, text)
    console.out().print(table)


COMMANDS = {
    "doctor": Command(
        DoctorConfig,
        doctor_command,
        "  bough doctor sft.jsonl --model smollm2\n  bough doctor pairs.jsonl --model Qwen/Qwen3-4B --max-length 2048",
    ),
}
