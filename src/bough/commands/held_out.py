"""`bough eval --eval-file`: a model on held-out files."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path

from rich.table import Table

from bough.calls.builder import CallBuilder
from bough.calls.template import load_template
from bough.config.evaluation import EvalConfig
from bough.disk import write_json
from bough.errors import InputError
from bough.evaluation.held_out import HeldOut
from bough.models.context import context_length
from bough.policy.adapters import add_reference
from bough.policy.load import base_and_adapter
from bough.policy.policy import Policy
from bough.terminal import console
from bough.training.origin import start_of
from bough.trajectories.reader import Reader

log = logging.getLogger(__name__)
# Records that are measured together: enough to share, few enough to see progress.
TOGETHER = 16


def held_out(config: EvalConfig) -> int:
    assert config.eval_file is not None
    [model] = config.model
    base = base_and_adapter(model)[0]
    template, context = load_template(base, config.chat_template), context_length(base)
    builder = CallBuilder(template, max_length=config.max_length, stride=config.stride, context=context)
    reader = Reader(config.eval_file, format=config.format, on_error="skip")
    samples = iter(reader)
    first = list(islice(samples, TOGETHER))
    if not first:
        raise InputError(f"{config.eval_file}: no row can be read; bough data validate says why")
    policy = Policy.load(model)
    reference = _load_reference(policy, Path(model))
    measured = HeldOut(policy.eval(), builder, config.token_budget, over_reference=reference is None)
    with console.progress(f"measuring {config.eval_file.name}") as bar:
        while first:
            measured.add(first)
            bar.advance(bar.task_ids[0], len(first))
            first = list(islice(samples, TOGETHER))
    if measured.pairs and reference:
        log.warning("preference_accuracy_over_reference is left out: %s.", reference)
    found = measured.to_json() | {"rows": reader.rows, "rows_skipped": dict(reader.skipped)}
    _print(found, measured)
    if config.output:
        write_json(config.output, {"model": model, "eval_file": str(config.eval_file)} | found)
    return 0


def _load_reference(policy: Policy, folder: Path) -> str | None:
    """Gives an adapter the reference it was trained against; returns why there is none where that cannot be done."""
    if not policy.has_adapter:
        return "a whole model contains no reference"
    try:
        start = start_of(folder)
    except InputError as error:
        return str(error)
    if start:
        add_reference(policy.model, start)
    return None


def _print(found: dict[str, object], measured: HeldOut) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("calls", str(measured.calls))
    for name, value in found.items():
        if isinstance(value, int | float):
            table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
    console.out().print(table)
