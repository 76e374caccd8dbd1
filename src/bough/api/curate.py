"""`bough.demos`, `bough.corrections`, `bough.pairs`, `bough.groups`: from episodes to what is trained on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from bough.api.inputs import (
    EnvironmentLike,
    Rewards,
    Source,
    StrPath,
    environment_name,
    is_path,
    reward_weights,
    trajectories_of,
)
from bough.api.models import LoadedModel, ModelLike, model_name
from bough.api.records import Records
from bough.api.settings import make_config, settings_of
from bough.config.corrections import EXPERT, CorrectionsConfig
from bough.config.curation import CurationConfig, DemosConfig, GroupsConfig, PairsConfig
from bough.curation.curate import Curated, curate_corrections, curate_demos, curate_groups, curate_pairs
from bough.methods.examples import IN_MEMORY
from bough.trajectories.writer import check_output
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
    with TemporaryDirectory(prefix="bough-") as folder:
        config = _config(DemosConfig, "demos", records, output, folder, settings, _weights(rewards))
        found = curate_demos(config, partial(trajectories_of, [records, also], format=config.format))
        return _records(found, "demonstrations", config, output)


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
    place = {"environment": None if environment is None else environment_name(environment), "by": model_name(by)}
    with TemporaryDirectory(prefix="bough-") as folder:
        config = _config(CorrectionsConfig, "corrections", records, output, folder, settings, place)
        agent = by.agent(config.sampling) if isinstance(by, LoadedModel) else None
        read = partial(trajectories_of, [records, also], format=config.format)
        mixed = None if mix is None else partial(trajectories_of, [mix])
        return _records(curate_corrections(config, read, mixed, agent=agent), "episodes", config, output)


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
    with TemporaryDirectory(prefix="bough-") as folder:
        config = _config(GroupsConfig, "groups", records, output, folder, settings, _weights(rewards))
        found = curate_groups(config, partial(trajectories_of, [records, also], format=config.format))
        return _records(found, "groups", config, output)


@settings_of(PairsConfig, "file")
def pairs(
    records: Source,
    *,
    also: Source = (),
    environment: EnvironmentLike | None = None,
    model: ModelLike = "smollm2",
    output: StrPath | None = None,
    **settings: Any,
) -> Records[Pair]:
    """Find preferences in episodes: what was better than what, from the same state.

    `records` and `also` are as in `bough.demos`. `environment`, a name or a class, is where
    states are restored for the kinds of pairs that need it, `model` plays there.
    """
    place = {"environment": None if environment is None else environment_name(environment), "model": model_name(model)}
    with TemporaryDirectory(prefix="bough-") as folder:
        config = _config(PairsConfig, "pairs", records, output, folder, settings, place)
        found = curate_pairs(config, partial(trajectories_of, [records, also], format=config.format))
        return _records(found, "pairs", config, output)


C = TypeVar("C", bound=CurationConfig)


def _config(
    config_class: type[C],
    function: str,
    records: Source,
    output: StrPath | None,
    folder: str,
    settings: dict[str, Any],
    more: dict[str, Any],
) -> C:
    file = Path(records) if is_path(records) else Path(IN_MEMORY)
    target = Path(output) if output is not None else Path(folder) / f"{function}.jsonl"
    config = make_config(config_class, function, settings, file=file, output=target, **more)
    check_output(config.output, config.overwrite)
    return config


def _weights(rewards: Rewards | None) -> dict[str, Any]:
    return {"rewards": reward_weights(rewards)} if rewards else {}


def _records(found: Curated[R], what: str, config: CurationConfig, output: StrPath | None) -> Records[R]:
    if output is not None:
        found.write(config)
    summary = "\n".join([f"{len(found.records)} {what}", *map(str, found.ledgers)])
    report = {**found.report, "ledgers": [ledger.to_json() for ledger in found.ledgers]}
    return Records(found.records, summary, report=report, path=None if output is None else Path(output))
