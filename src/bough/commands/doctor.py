"""`bough doctor`: what a model would be trained on, token by token, and what is wrong with it."""

from __future__ import annotations

from rich.table import Table

from bough.calls.builder import CallBuilder
from bough.calls.diagnosis import Diagnosis
from bough.calls.template import load_template
from bough.config.doctor import DoctorConfig
from bough.disk import write_json
from bough.errors import InputError
from bough.ledger import Ledger
from bough.models.context import context_length
from bough.policy.load import base_and_adapter
from bough.rundir import RunDir
from bough.terminal import console
from bough.terminal.tokens import coloured
from bough.trajectories.reader import Reader


def doctor(config: DoctorConfig) -> int:
    """Prints the samples, the counts and the findings; exit 2 if a finding is a failure."""
    template = load_template(config.model, config.chat_template)
    context = context_length(base_and_adapter(config.model)[0])
    builder = CallBuilder(template, max_length=config.max_length, stride=config.stride, context=context)
    diagnosis = Diagnosis(builder)
    reader = Reader(config.file, format=config.format, on_error="skip")
    out = console.out()
    rows = Ledger("rows")
    with console.progress(f"tokenising {config.file.name}", total=config.limit) as bar:
        for sample in reader:
            place = f"{reader.place.file}:{reader.place.line}"
            calls = diagnosis.add(sample, place)
            if rows.kept < config.samples:
                out.rule(console.printable(place), style="dim")
                for text in coloured(calls, template.tokenizer):
                    out.print(text)
            rows.keep()
            bar.advance(bar.task_ids[0])
            if rows.kept == config.limit:
                break
    for reason, count in reader.skipped.items():
        rows.drop(reason, count)
    if not rows.came_in:
        raise InputError(f"{config.file}: the file holds no rows")
    _print_counts(diagnosis, rows)
    failed = _print_findings(diagnosis)
    if config.output:
        run = RunDir(config.output)
        run.create(config)
        write_json(run.report, diagnosis.to_json())
        write_json(run.ledger, [rows.to_json(), diagnosis.calls.to_json()])
    return 2 if failed else 0


def _print_counts(diagnosis: Diagnosis, rows: Ledger) -> None:
    tokens, template = diagnosis.tokens, diagnosis.builder.template
    raw = tokens["trained"] + tokens["context"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("end of turn", f"{console.printable(template.end_of_turn)} (token {template.end_of_turn_id})")
    table.add_row(
        "tools", "known to the template" if template.knows_tools else "said in Hermes tags (the template knows none)"
    )
    table.add_row("rows", str(rows))
    table.add_row("calls", str(diagnosis.calls))
    if diagnosis.shortened:
        table.add_row("shortened", f"{diagnosis.shortened} calls left out their oldest steps to fit max_length")
    if given := tokens["turns given as context"]:
        table.add_row("context only", f"{given} replies are marked as not to be trained")
    table.add_row("tokens trained", f"{tokens['trained']:,}")
    table.add_row("tokens of context", f"{tokens['context']:,}")
    if tokens["computed"]:
        table.add_row(
            "tokens computed", f"{tokens['computed']:,} as a tree ({raw / tokens['computed']:.1f}× fewer than {raw:,})"
        )
    console.out().print(table)


def _print_findings(diagnosis: Diagnosis) -> bool:
    out, failed = console.out(), False
    for reason, examples in diagnosis.examples.items():
        out.print(console.printable(f"dropped as {reason}, for example {examples[0]}"), style="yellow", markup=False)
    for finding in diagnosis.findings():
        failed |= finding.level == "fail"
        style = "bold red" if finding.level == "fail" else "yellow"
        text = f"{finding.level.upper()} {finding.name}: {finding.message}"
        out.print(console.printable(text), style=style, markup=False)
    if not failed:
        out.print("OK: every trained token is an answer's, and every answer ends its turn", style="green")
    return failed
