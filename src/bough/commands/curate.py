"""`bough.demos`, `bough.corrections`, `bough.pairs`, `bough.groups`: from episodes to what is trained on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from bough.commands.models import LoadedModel, ModelLike, model_name
from bough.commands.objects import (
    EnvironmentLike,
    Records,
    Rewards,
    Source,
    StrPath,
    environment_name,
    file_of,
    reward_weights,
    trajectories_of,
)
from bough.commands.table import Command, Stage
from bough.config.keywords import make_config, settings_of
from bough.curation.corrections import EXPERT, CorrectionsConfig
from bough.curation.curate import Curated, Read, curate_corrections, curate_demos, curate_groups, curate_pairs
from bough.curation.demonstrations import DemosConfig, GroupsConfig
from bough.curation.rounds import PairsConfig
from bough.curation.source import CurationConfig, ledger_path, read_filed
from bough.data.writer import check_output
from bough.ledger import plural
from bough.terminal import console
from bough.types import Group, Pair, Trajectory

R = TypeVar("R", Trajectory, Pair, Group)


@settings_of(DemosConfig, "file")
def demos(
    records: Source,
    *,
    also: Source = (),
    rewards: Rewards | None = None,
    output: StrPath | None = None,
    **settings: Any,
) -> Records[Trajectory]:
    """Keep the episodes worth imitating.

    `records` are trajectories or groups in memory, or the path of a file or a folder of
    `bough collect`; `also` are more of them. `rewards` are names or functions, as in
    `bough.collect`. With `output`, a .jsonl file, the result is written there too.
    """
    settings |= {"rewards": reward_weights(rewards)} if rewards else {}
    return _curated(DemosConfig, curate_demos, "demonstrations", records, also, output, settings)


@settings_of(CorrectionsConfig, "file")
def corrections(
    records: Source,
    *,
    by: ModelLike = EXPERT,
    also: Source = (),
    mix: Source | None = None,
    environment: EnvironmentLike | None = None,
    output: StrPath | None = None,
    **settings: Any,
) -> Records[Trajectory]:
    """Label every turn of the agent's own episodes with what should have been replied there.

    `records` and `also` are as in `bough.demos`. `by` is "expert" (the environment's own), a
    model by name, folder or loaded, or the address of a server. `mix` are demonstrations or
    earlier corrections, added as they are. `environment`, a name or a class, is where the
    episodes are replayed. `bough.sft` trains on the result.
    """
    mixed = None if mix is None else partial(trajectories_of, [mix])

    def curate(config: CorrectionsConfig, read: Read) -> Curated[Trajectory]:
        agent = by.agent(config.sampling) if isinstance(by, LoadedModel) else None
        return curate_corrections(config, read, mixed, agent=agent)

    settings |= {"environment": environment and environment_name(environment), "by": model_name(by)}
    return _curated(CorrectionsConfig, curate, "episodes", records, also, output, settings)


@settings_of(GroupsConfig, "file")
def groups(
    records: Source,
    *,
    also: Source = (),
    rewards: Rewards | None = None,
    output: StrPath | None = None,
    **settings: Any,
) -> Records[Group]:
    """Put the attempts at each task together, to be compared with each other by GRPO.

    The arguments are those of `bough.demos`.
    """
    settings |= {"rewards": reward_weights(rewards)} if rewards else {}
    return _curated(GroupsConfig, curate_groups, "groups", records, also, output, settings)


@settings_of(PairsConfig, "file")
def pairs(
    records: Source,
    *,
    also: Source = (),
    environment: EnvironmentLike | None = None,
    output: StrPath | None = None,
    **settings: Any,
) -> Records[Pair]:
    """Find preferences in episodes: what was better than what, from the same state.

    `records` and `also` are as in `bough.demos`. `environment`, a name or a class, is where
    states are restored for the kinds of pairs that need it.
    """
    settings |= {"environment": environment and environment_name(environment)}
    return _curated(PairsConfig, curate_pairs, "pairs", records, also, output, settings)


C = TypeVar("C", bound=CurationConfig)


def _curated(
    config_class: type[C],
    curate: Callable[[C, Read], Curated[R]],
    what: str,
    records: Source,
    also: Source,
    output: StrPath | None,
    settings: dict[str, Any],
) -> Records[R]:
    name = config_class.command
    with TemporaryDirectory(prefix="bough-") as folder:
        target = Path(output) if output is not None else Path(folder) / f"{name}.jsonl"
        config = make_config(config_class, name, settings, file=file_of(records), output=target)
        check_output(config.output, config.overwrite)
        found: Curated[R] = curate(config, partial(trajectories_of, [records, also], format=config.format))
        if output is not None:
            found.write(config)
    summary = "\n".join([f"{len(found.records)} {what}", *map(str, found.ledgers)])
    report = {**found.report, "ledgers": [ledger.to_json() for ledger in found.ledgers]}
    return Records(found.records, summary, report=report, path=None if output is None else Path(output))


# `bough demos`, `bough corrections`, `bough pairs`, `bough groups`: from episodes to training data.

LINE_EVERY_S = 10.0


def _corrections(config: CorrectionsConfig, read: Read) -> Curated[Trajectory]:
    said_at = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= LINE_EVERY_S:
            said_at = time.monotonic()
            console.err().print(f"{done} of {plural(total, 'episode')} labelled")

    return curate_corrections(config, read, partial(read_filed, config.mix) if config.mix else None, tell)


def _run(curate: Callable[[Any, Read], Curated[Any]], what: str, config: CurationConfig) -> int:
    check_output(config.output, config.overwrite)
    found = curate(config, partial(read_filed, [config.file, *config.also], format=config.format))
    notes = [
        f"{failed['failed']} of {found.num_read} have no reward {name} ({failed['why']})"
        for name, failed in found.report.get("not_scored", {}).items()
    ]
    notes += [
        f"{worst['attempts']} of {found.num_read} have the worst {name}: their own words prevented another "
        f"({worst['why']})"
        for name, worst in found.report.get("scored_lowest", {}).items()
    ]
    for note in notes:
        console.err().print(console.printable(note), style="yellow", markup=False)
    written = found.write(config)
    if config.as_json:
        accounts = [ledger.to_json() for ledger in found.ledgers]
        console.print_json({"output": str(config.output), "written": written, "ledgers": accounts, **found.report})
        return 0
    lines = list(map(str, found.ledgers))
    for name, value in found.report.items():
        if isinstance(value, dict) and value and name not in ("not_scored", "scored_lowest"):
            lines.append(f"{name}: " + ", ".join(f"{key} {_shown(number)}" for key, number in value.items()))
    lines.append(f"{written} {what} in {config.output}, the ledger in {ledger_path(config.output)}")
    console.out().print("\n".join(lines), markup=False)
    return 0


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


COMMANDS = {
    "demos": Command(
        DemosConfig,
        partial(_run, curate_demos, "demonstrations"),
        "  bough demos runs/collect -o demos.jsonl --per-task 1\n"
        "  bough demos runs/collect -o demos.jsonl --rewards outcome=1 steps=0.2 --min-reward 1.1",
        stage=Stage("trajectories", "demonstrations", "demonstrations.jsonl", "output", "file", one_file=True),
    ),
    "corrections": Command(
        CorrectionsConfig,
        partial(_run, _corrections, "episodes"),
        "  bough corrections runs/collect --by expert --mix demos.jsonl -o corrections.jsonl\n"
        "  bough corrections runs/collect --by Qwen/Qwen3-8B --where everywhere -o corrections.jsonl\n"
        "  bough corrections runs/collect --by http://127.0.0.1:8000/v1 -o corrections.jsonl",
        stage=Stage(
            *("trajectories", "demonstrations", "corrections.jsonl", "output", "file"),
            one_file=True,
            adds="mix",
            labels="by",
        ),
    ),
    "pairs": Command(
        PairsConfig,
        partial(_run, curate_pairs, "pairs"),
        "  bough pairs runs/collect -o pairs.jsonl\n"
        "  bough pairs runs/collect --also runs/demonstrations --kinds parting failure_mode -o pairs.jsonl",
        stage=Stage("trajectories", "pairs", "pairs.jsonl", "output", "file", one_file=True),
    ),
    "groups": Command(
        GroupsConfig,
        partial(_run, curate_groups, "groups"),
        "  bough groups runs/collect -o groups.jsonl --rewards outcome=1 tool_call=1",
        stage=Stage("trajectories", "groups", "groups.jsonl", "output", "file", one_file=True),
    ),
}
