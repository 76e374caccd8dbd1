"""`bough collect`: many episodes, kept as they happened."""

from __future__ import annotations

import asyncio
from typing import Any

from bough.config.rollouts import CollectConfig
from bough.environments.registry import find
from bough.environments.tasks import first_tasks, tasks_of
from bough.rollouts.agents import Agent, make_agent
from bough.rollouts.collect import Attempt, Tally, attempts
from bough.rollouts.collect import collect as collect_episodes
from bough.rollouts.collection import Collection
from bough.rollouts.rescore import rescore
from bough.terminal import console
from bough.terminal.episodes import EpisodesProgress


def collect(config: CollectConfig) -> int:
    kind = find(config.environment)
    tasks = first_tasks(
        tasks_of(kind, options=config.options, split=config.split, task_file=config.task_file, seed=config.seed),
        config.tasks,
    )
    if len(tasks) < config.tasks:
        console.err().print(f"{config.tasks} tasks were asked for; there are {len(tasks)}", style="yellow")
    wanted = list(attempts(tasks, config.attempts, config.seed))
    with Collection(config) as collection:
        missing = [attempt for attempt in wanted if attempt.id not in collection.finished]
        if len(missing) < len(wanted):
            console.err().print(f"{len(wanted) - len(missing)} of {len(wanted)} episodes are on file; going on")
        asyncio.run(_collect(config, collection, missing))
        collection.finish([attempt.id for attempt in wanted])
    return 0


async def _collect(config: CollectConfig, collection: Collection, missing: list[Attempt]) -> None:
    kind = find(config.environment)
    numbers: dict[str, Any] = {}
    tally = Tally()
    agent: Agent | None = None
    try:
        if missing:
            agent = await make_agent(config, config)
            with EpisodesProgress(len(missing)) as bar:
                tally = await collect_episodes(
                    kind, agent, missing, collection.add,
                    limits=config, concurrency=config.concurrency, retries=config.retries,
                    tell=lambda tally: bar.tell(tally.to_json()),
                )  # fmt: skip
        numbers = _all_on_file(collection, tally)
        if agent is not None:
            rescored = rescore(agent, collection.read(), config.rescore)
            collection.keep_rescored(rescored.logprobs)
            numbers |= rescored.numbers
    finally:
        if agent is not None:
            await agent.close()
        await kind.shutdown()
    collection.report(numbers)
    _tell(collection, numbers)


def _all_on_file(collection: Collection, now: Tally) -> dict[str, Any]:
    """The numbers of every episode in the folder, with the faults and the time of this run."""
    whole = Tally(faults=now.faults, lost=now.lost, seconds=now.seconds)
    for trajectory in collection.read():
        whole.add(trajectory)
    return whole.to_json() | {"episodes_this_run": now.episodes}


def _tell(collection: Collection, numbers: dict[str, Any]) -> None:
    out = console.out()
    rate = numbers["success_rate"]
    out.print(f"{numbers['episodes']} episodes, success {'unknown' if rate is None else f'{rate:.1%}'}")
    out.print("stopped: " + ", ".join(f"{count} {reason}" for reason, count in numbers["stops"].items()), markup=False)
    for name in ("errors", "faults"):
        if numbers[name]:
            out.print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in numbers[name].items()), markup=False)
    for episode, why in numbers["lost"].items():
        console.err().print(console.printable(f"{episode} was given up: {why}"), style="red", markup=False)
    if "logprob_gap_max" in numbers:
        gap = f"mean {numbers['logprob_gap_mean']:.2g}, largest {numbers['logprob_gap_max']:.2g}"
        out.print(f"sampled against trained log-probabilities: {gap} on {numbers['rescored_tokens']} tokens")
    out.print(f"episodes in {collection.trajectories}", markup=False)
