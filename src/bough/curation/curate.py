"""Demonstrations, corrections, groups and pairs by the settings of their commands: read, score, select, count.

`read` returns the trajectories, from files or from memory; what it cannot use it drops in the ledger it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from bough import event_loop
from bough.curation.corrections import CorrectionsConfig, CorrectionWork
from bough.curation.demonstrations import DemosConfig, GroupsConfig, demonstrations, groups
from bough.curation.pairs import PairWork
from bough.curation.rounds import PairsConfig
from bough.curation.source import CurationConfig, SourcedTrajectory, write_out
from bough.environments.rubric import TOTAL, Rubric
from bough.errors import InputError
from bough.ledger import Ledger
from bough.rollouts.episode import ModelAgent
from bough.types import Group, Pair, Trajectory

R = TypeVar("R", Trajectory, Pair, Group)
Read = Callable[[Ledger], list[SourcedTrajectory]]


@dataclass(frozen=True)
class Curated(Generic[R]):
    """The records, the ledgers of what was read and selected, and the numbers to report.

    In the report, `not_scored` says for each reward that failed on how many of the `num_read` trajectories, and
    why; `scored_lowest` the same of those that got the worst value because their own words prevented another.
    """

    records: list[R]
    ledgers: list[Ledger]
    num_read: int
    report: dict[str, Any] = field(default_factory=dict)

    def write(self, config: CurationConfig) -> int:
        """Writes the records and their ledgers; returns the number of records. InputError if there is none."""
        sources = [str(path) for path in (config.file, *config.also)]
        return write_out(config.output, self.records, self.ledgers, sources=sources, **self.report)


def curate_demos(config: DemosConfig, read: Read) -> Curated[Trajectory]:
    """The trajectories worth imitating."""
    ledger = Ledger("trajectories")
    filed, report = _scored(read(ledger), config)
    return Curated(demonstrations(filed, config, ledger), [ledger], len(filed), report)


def curate_corrections(
    config: CorrectionsConfig,
    read: Read,
    read_mixed: Read | None = None,
    tell: Callable[[int, int], None] | None = None,
    agent: ModelAgent | None = None,
) -> Curated[Trajectory]:
    """The agent's own episodes with corrections, and what `read_mixed` returns as it is.

    `tell` gets the number of episodes labelled so far and of all. `agent` labels instead of what the settings name.
    """
    if config.mix_share is not None and read_mixed is None:
        raise InputError("--mix-share has nothing to limit: give the files to add with --mix")
    ledger = Ledger("episodes")
    work = CorrectionWork(config, read(ledger), ledger, tell)
    found = event_loop.run(work.correct(agent))
    mixed = Ledger("mixed episodes")
    if read_mixed is not None:
        found += work.mix(found, read_mixed(mixed), mixed)
    ledgers = [ledger, work.turns, *([mixed] if read_mixed is not None else [])]
    return Curated(found, ledgers, len(work.filed), {"labels": dict(work.labels)})


def curate_groups(config: GroupsConfig, read: Read) -> Curated[Group]:
    """The attempts at each task together."""
    ledger = Ledger("attempts")
    filed, report = _scored(read(ledger), config)
    return Curated(groups(filed, config, ledger), [ledger], len(filed), report)


def curate_pairs(config: PairsConfig, read: Read) -> Curated[Pair]:
    """The pairs of every requested kind."""
    ledger = Ledger("trajectories")
    filed = read(ledger)
    ledger.keep(len(filed))
    work = PairWork(config, filed)
    found = event_loop.run(work.mine())
    report = {"reasons": dict(Counter(pair.reason for pair in found).most_common())}
    return Curated(found, [ledger, *work.ledgers], len(filed), report)


def _scored(
    filed: list[SourcedTrajectory], config: DemosConfig | GroupsConfig
) -> tuple[list[SourcedTrajectory], dict[str, Any]]:
    """The trajectories with the requested rewards, and what to report about them."""
    if not config.rewards:
        return filed, {}
    rubric = Rubric(config.rewards, timeout_s=config.reward_timeout_s)
    found = rubric.score_all([item.trajectory for item in filed])
    # Each mean is over the trajectories that have the reward.
    names = [*(part.name for part in rubric.parts), TOTAL]
    known = {name: [v for one in found if (v := one.rewards[name]) is not None] for name in names}
    means = {name: sum(values) / len(values) if values else None for name, values in known.items()}
    report: dict[str, Any] = {"rewards": means, "not_scored": rubric.to_json()}
    report |= {"scored_lowest": lowest} if (lowest := rubric.lowest_to_json()) else {}
    report |= {"judged": costs} if (costs := rubric.costs()) else {}
    return [replace(item, trajectory=one) for item, one in zip(filed, found, strict=True)], report
