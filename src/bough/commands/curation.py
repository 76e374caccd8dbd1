"""`bough demos`, `bough pairs`, `bough groups`: from episodes to training data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bough import event_loop
from bough.config.curation import CurationConfig, DemosConfig, GroupsConfig, PairsConfig
from bough.config.rewards import RewardsConfig
from bough.curation.counterfactual import Cost
from bough.curation.demonstrations import demonstrations
from bough.curation.groups import groups as make_groups
from bough.curation.output import ledger_path, write_out
from bough.curation.pair_work import PairWork
from bough.curation.scoring import means, scored
from bough.curation.source import SourcedTrajectory, read_filed
from bough.formats.base import Sample
from bough.ledger import Ledger
from bough.terminal import console
from bough.trajectories.writer import check_output

LINE_EVERY_S = 10.0


def demos(config: DemosConfig) -> int:
    check_output(config.output, config.overwrite)
    ledger = Ledger("trajectories")
    filed, more = _scored(read_filed([config.file, *config.also], ledger, format=config.format), config)
    return _write(config, demonstrations(filed, config, ledger), [ledger], "demonstrations", **more)


def groups(config: GroupsConfig) -> int:
    check_output(config.output, config.overwrite)
    ledger = Ledger("attempts")
    filed, more = _scored(read_filed([config.file, *config.also], ledger, format=config.format), config)
    return _write(config, make_groups(filed, config, ledger), [ledger], "groups", **more)


def pairs(config: PairsConfig) -> int:
    check_output(config.output, config.overwrite)
    read = Ledger("trajectories")
    filed = read_filed([config.file, *config.also], read, format=config.format)
    read.keep(len(filed))
    work = PairWork(config, filed, tell=_Progress().tell)
    kept = event_loop.run(work.mine())
    more: dict[str, Any] = {"reasons": dict(Counter(pair.reason for pair in kept).most_common())}
    if work.cost.rounds:
        more["cost"] = work.cost.to_json()
    done = _write(config, kept, [read, *work.ledgers], "pairs", **more)
    work.forget()
    return done


def _scored(filed: list[SourcedTrajectory], config: RewardsConfig) -> tuple[list[SourcedTrajectory], dict[str, Any]]:
    """The trajectories with the requested rewards, and what to report about them."""
    if not config.rewards:
        return filed, {}
    with_rewards, rubric = scored(filed, config.rewards)
    for name, count in rubric.failed.items():
        why = console.printable(rubric.why[name])
        console.err().print(f"{count} of {len(filed)} have no reward {name} ({why})", style="yellow", markup=False)
    return with_rewards, {"rewards": means(with_rewards, rubric), "not_scored": rubric.to_json()}


class _Progress:
    """Prints a line of progress every few seconds."""

    def __init__(self) -> None:
        self.said_at = time.monotonic()

    def tell(self, cost: Cost) -> None:
        if time.monotonic() - self.said_at >= LINE_EVERY_S:
            self.said_at = time.monotonic()
            console.err().print(f"{cost.rounds} rounds, {cost.episodes} episodes, {cost.sampled_turns} replies sampled")


def _write(config: CurationConfig, records: Sequence[Sample], ledgers: Sequence[Ledger], what: str, **more: Any) -> int:
    sources = [str(path) for path in (config.file, *config.also)]
    written = write_out(config.output, records, ledgers, sources=sources, **more)
    if config.as_json:
        accounts = [ledger.to_json() for ledger in ledgers]
        console.print_json({"output": str(config.output), "written": written, "ledgers": accounts, **more})
        return 0
    out = console.out()
    for ledger in ledgers:
        out.print(str(ledger), markup=False)
    for name, value in more.items():
        if isinstance(value, dict) and value and name != "not_scored":
            shown = ", ".join(f"{key} {_shown(number)}" for key, number in value.items())
            out.print(f"{name}: {shown}", markup=False)
    out.print(f"{written} {what} in {config.output}, the ledger in {ledger_path(config.output)}", markup=False)
    return 0


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)
