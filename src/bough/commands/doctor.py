"""`bough doctor`: which tokens of a data file would be trained, and what is wrong with the file."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bough.calls.diagnosis import Diagnosis, diagnose
from bough.config.doctor import DoctorConfig
from bough.disk import write_json
from bough.plural import plural
from bough.policy.load import load_call_builder
from bough.rundir import RunDir
from bough.terminal import console
from bough.terminal.tokens import coloured
from bough.types import Call


def doctor(config: DoctorConfig) -> int:
    """Prints the samples, the counts and the findings; exit 2 if a finding is a failure."""
    diagnosis = _diagnose(config, console.out())
    report = _report(config, diagnosis)
    failed = any(finding["level"] == "fail" for finding in report["findings"])
    if config.output:
        run = RunDir(config.output)
        run.create(config)
        write_json(run.report, report)
        write_json(run.ledger, [diagnosis.rows.to_json(), diagnosis.calls.to_json()])
    if config.as_json:
        console.print_json({"file": str(config.source.file), "model": config.model, "ok": not failed} | report)
    else:
        _print_counts(diagnosis, limited=report["limited"])
        _print_findings(diagnosis)
    return 2 if failed else 0


def _diagnose(config: DoctorConfig, out: Console) -> Diagnosis:
    """Tokenises the records, and prints the first few."""
    builder = load_call_builder(
        config.model, config.calls.chat_template, max_length=config.calls.max_length, stride=config.calls.stride
    )
    left = 0 if config.as_json else config.samples
    with console.progress(f"tokenising {config.source.file.name}", total=config.limit) as bar:

        def seen(place: str, calls: list[Call]) -> None:
            nonlocal left
            if left:
                left -= 1
                out.rule(console.printable(place), style="dim")
                for text in coloured(calls, builder.template.tokenizer):
                    out.print(text)
            bar.advance(bar.task_ids[0])

        return diagnose(config, builder, seen)


def _report(config: DoctorConfig, diagnosis: Diagnosis) -> dict[str, Any]:
    return diagnosis.to_json() | {"limited": diagnosis.rows.kept == config.limit}


def _print_counts(diagnosis: Diagnosis, *, limited: bool) -> None:
    tokens, template, rows = diagnosis.tokens, diagnosis.builder.template, diagnosis.rows
    raw = tokens["trained"] + tokens["context"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("end of turn", f"{console.printable(template.end_of_turn)} (token {template.end_of_turn_id})")
    table.add_row(
        "tools", "in the template's own format" if template.knows_tools else "in Hermes tags: the template has none"
    )
    table.add_row("rows", f"{rows}; stopped at --limit {rows.kept}" if limited else str(rows))
    table.add_row("calls", str(diagnosis.calls))
    if diagnosis.shortened:
        table.add_row(
            "shortened", f"{plural(diagnosis.shortened, 'call loses', 'calls lose')} the oldest steps to fit max_length"
        )
    if given := tokens["turns given as context"]:
        table.add_row("context only", f"{plural(given, 'reply is', 'replies are')} marked as not trained")
    table.add_row("tokens trained", f"{tokens['trained']:,}")
    table.add_row("tokens of context", f"{tokens['context']:,}")
    if tokens["computed"]:
        table.add_row(
            "tokens computed", f"{tokens['computed']:,} as a tree ({raw / tokens['computed']:.1f}× fewer than {raw:,})"
        )
    console.out().print(table)


def _print_findings(diagnosis: Diagnosis) -> None:
    out, findings = console.out(), list(diagnosis.findings())
    for finding in findings:
        style = "bold red" if finding.level == "fail" else "bold yellow"
        text = f"{finding.level.upper()} {finding.name}: {finding.message}"
        out.print(console.printable(text), style=style, markup=False)
    if diagnosis.rows.dropped or diagnosis.calls.dropped or any(finding.level == "fail" for finding in findings):
        return
    out.print("OK: nothing is dropped, only answers are trained, and every answer ends its turn", style="green")
