"""`bough demos`, `bough corrections`, `bough pairs`, `bough groups`: from episodes to training data."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from bough.config.corrections import CorrectionsConfig
from bough.config.curation import CurationConfig, DemosConfig, GroupsConfig, PairsConfig
from bough.curation.counterfactual import Cost
from bough.curation.curate import Curated, Read, curate_corrections, curate_demos, curate_groups, curate_pairs
from bough.curation.output import ledger_path
from bough.curation.source import read_filed
from bough.plural import plural
from bough.terminal import console
from bough.trajectories.writer import check_output

LINE_EVERY_S = 10.0


def demos(config: DemosConfig) -> int:
    return _write(config, curate_demos(config, _read(config)), "demonstrations")


def corrections(config: CorrectionsConfig) -> int:
    mixed = partial(read_filed, config.mix) if config.mix else None
    return _write(config, curate_corrections(config, _read(config), mixed, _Progress().labelled), "episodes")


def groups(config: GroupsConfig) -> int:
    return _write(config, curate_groups(config, _read(config)), "groups")


def pairs(config: PairsConfig) -> int:
    return _write(config, curate_pairs(config, _read(config), _Progress().tell), "pairs")


def _read(config: CurationConfig) -> Read:
    check_output(config.output, config.overwrite)
    return partial(read_filed, [config.file, *config.also], format=config.format)


class _Progress:
    """Prints a line of progress every few seconds."""

    def __init__(self) -> None:
        self.said_at = time.monotonic()

    def tell(self, cost: Cost) -> None:
        played = f"{plural(cost.rounds, 'round')}, {plural(cost.episodes, 'episode')}"
        self._say(f"{played}, {plural(cost.sampled_turns, 'reply')} sampled")

    def labelled(self, done: int, total: int) -> None:
        self._say(f"{done} of {plural(total, 'episode')} labelled")

    def _say(self, line: str) -> None:
        if time.monotonic() - self.said_at >= LINE_EVERY_S:
            self.said_at = time.monotonic()
            console.err().print(line)


def _write(config: CurationConfig, found: Curated[Any], what: str) -> int:
    for name, failed in found.not_scored.items():
        line = f"{failed['failed']} of {found.num_read} have no reward {name} ({console.printable(failed['why'])})"
        console.err().print(line, style="yellow", markup=False)
    for name, lowest in found.scored_lowest.items():
        why = console.printable(lowest["why"])
        line = (
            f"{lowest['attempts']} of {found.num_read} have the worst {name}: their own words prevented another ({why})"
        )
        console.err().print(line, style="yellow", markup=False)
    written = found.write(config)
    if config.as_json:
        accounts = [ledger.to_json() for ledger in found.ledgers]
        console.print_json({"output": str(config.output), "written": written, "ledgers": accounts, **found.report})
        return 0
    out = console.out()
    for ledger in found.ledgers:
        out.print(str(ledger), markup=False)
    for name, value in found.report.items():
        if isinstance(value, dict) and value and name not in ("not_scored", "scored_lowest"):
            shown = ", ".join(f"{key} {_shown(number)}" for key, number in value.items())
            out.print(f"{name}: {shown}", markup=False)
    out.print(f"{written} {what} in {config.output}, the ledger in {ledger_path(config.output)}", markup=False)
    return 0


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)
