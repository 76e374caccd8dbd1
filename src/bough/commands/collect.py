"""`bough collect`: many episodes, kept as they happened."""

from __future__ import annotations

import asyncio
from typing import Any

from bough.config.rollouts import CollectConfig
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.environments.tasks import configured
from bough.rollouts.agents import Agent, make_agent
from bough.rollouts.collect import AllLostError, Attempt, Tally, attempts, lost_lines, wanted_tasks
from bough.rollouts.collect import collect as collect_episodes
from bough.rollouts.collection import TRAJECTORIES, Collection
from bough.rollouts.rescore import rescore
from bough.terminal import console
from bough.terminal.episodes import EpisodesProgress


def collect(config: CollectConfig) -> int:
    environment_class = configured(find(config.environment), config.options)
    wanted = list(attempts(wanted_tasks(environment_class, config), config.attempts, config.seed))
    with Collection(config) as collection:
        missing = collection.missing(wanted)
        if len(missing) < len(wanted):
            then = "resuming" if missing else "nothing to play"
            console.err().print(f"{len(wanted) - len(missing)} of {len(wanted)} episodes are recorded; {then}")
        numbers = None if missing else collection.old_report()
        if numbers is None:
            numbers = asyncio.run(_collect(config, collection, missing))
            collection.report(numbers)
        collection.finish([attempt.id for attempt in wanted])
    _tell(config, numbers)
    if not any(attempt.id in collection.finished for attempt in wanted):
        raise AllLostError(numbers["lost"])
    return 0


async def _collect(config: CollectConfig, collection: Collection, missing: list[Attempt]) -> dict[str, Any]:
    environment_class = configured(find(config.environment), config.options)
    tally = Tally()
    agent: Agent | None = None
    try:
        if missing:
            agent = await make_agent(config, config)
            with EpisodesProgress(len(missing)) as bar:
                tally = await collect_episodes(
                    environment_class, agent, missing, collection.add,
                    limits=config, concurrency=config.concurrency, retries=config.retries,
                    tell=lambda tally: bar.tell(tally.to_json()),
                )  # fmt: skip
    finally:
        if agent is not None:
            await agent.close()
        await shut_down(environment_class)
    numbers = _all_on_file(collection, tally)
    if agent is not None:  # closed: its model is free
        rescored = rescore(agent, collection, config.rescore)
        collection.keep_rescored(rescored.logprobs)
        numbers |= rescored.numbers
    return numbers


def _all_on_file(collection: Collection, now: Tally) -> dict[str, Any]:
    """The numbers of every episode in the folder, with the failures and the time of this run."""
    whole = Tally(faults=now.faults, lost=now.lost, seconds=now.seconds)
    for trajectory in collection:
        whole.add(trajectory)
    return whole.to_json() | {"episodes_this_run": now.episodes}


def _tell(config: CollectConfig, numbers: dict[str, Any]) -> None:
    out = console.out()
    rate = numbers["success_rate"]
    out.print(f"{numbers['episodes']} episodes, success {'unknown' if rate is None else f'{rate:.1%}'}")
    for title, name in (("stopped", "stops"), ("errors", "errors"), ("faults", "faults")):
        if numbers[name]:
            counts = ", ".join(f"{count} {what}" for what, count in numbers[name].items())
            out.print(f"{title}: {counts}", markup=False)
    for line in lost_lines(numbers["lost"]):
        console.err().print(console.printable(line), style="red", markup=False)
    if "logprob_gap_max" in numbers:
        gap = f"mean {numbers['logprob_gap_mean']:.2g}, largest {numbers['logprob_gap_max']:.2g}"
        out.print(f"sampled against trained log-probabilities: {gap} on {numbers['rescored_tokens']} tokens")
    out.print(f"episodes in {config.output / TRAJECTORIES}", markup=False)
