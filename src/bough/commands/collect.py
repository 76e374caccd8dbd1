"""`bough.collect`: play many episodes and get them as a list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bough import event_loop
from bough.commands.models import LoadedModel, ModelLike, model_name
from bough.commands.objects import AgentLike, EnvironmentLike, Records, Rewards, StrPath, reward_weights, where_to_play
from bough.commands.table import Command, Stage
from bough.config.groups import CollectConfig
from bough.config.keywords import make_config, settings_of
from bough.data.writer import Writer
from bough.environments.base import configured
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.environments.rubric import Rubric
from bough.errors import InputError
from bough.evaluation.contest import EvalConfig
from bough.files import replacing, without_absolute, working_directory
from bough.ledger import plural
from bough.rollouts.collect import (
    TRAJECTORIES,
    AllLostError,
    Attempt,
    Collection,
    LocalRunner,
    NoExpertError,
    Runner,
    Tally,
    attempts,
    lost_lines,
    wanted_tasks,
)
from bough.rollouts.collect import collect as collect_episodes
from bough.rollouts.episode import NO_EXPERT, Agent, make_agent
from bough.rollouts.rescore import rescore
from bough.rollouts.tree import sampled
from bough.terminal import console
from bough.terminal.console import EpisodesProgress, announce
from bough.types import Trajectory


def announce_episodes(config: CollectConfig | EvalConfig) -> None:
    """Says what is to be played, before what takes long: imports, loading a model, the first episodes."""
    environment = without_absolute(config.environment.name, *working_directory())
    what = f"{plural(config.tasks, 'task')} of {environment}"
    each = f", {config.attempts} attempts each," if config.attempts > 1 else ""
    models = config.agent.model if isinstance(config.agent.model, list) else [config.agent.model]
    adapter = f" and the adapter {config.agent.adapter}" if config.agent.adapter else ""
    announce(f"playing {what}{each} with {', '.join(models)}{adapter}; episodes go to {config.output}")


@settings_of(CollectConfig, "own_agent")
def collect(
    model: ModelLike,
    environment: EnvironmentLike | None = None,
    *,
    agent: AgentLike | None = None,
    rewards: Rewards | None = None,
    output: StrPath | None = None,
    **settings: Any,
) -> Records[Trajectory]:
    """Play episodes and return them as a list of trajectories, in the order of the tasks.

    `model` is a name, a folder, a trained model, a model from `bough.load`, "expert" or
    "random". `environment` is a name or an environment class; or `agent` is your own function
    that plays a task against an address (`bough.recorded` shows how). `rewards` are names or
    functions of a trajectory, a list of them or a mapping to weights; every trajectory
    gets each of them and their weighted sum, `total`, in its `rewards`. `step_timeout_s` is
    also the time limit of one reward.

    `cluster` ("auto" or HOST:PORT) plays on the machines of a Ray cluster.

    With `output`, a folder, the episodes are kept on disk too, and a collection that was
    stopped resumes there. Without it nothing is left on disk; images that an environment
    showed are lost then.
    """
    rubric = Rubric(reward_weights(rewards)) if rewards else None
    loaded = model if isinstance(model, LoadedModel) else None
    with TemporaryDirectory(prefix="bough-") as folder:
        config = make_config(
            CollectConfig, "collect", settings,
            model=model_name(model), **where_to_play(environment, agent),
            output=Path(output) if output is not None else Path(folder) / "collection",
        )  # fmt: skip
        if loaded is not None and config.cluster.address is not None:
            raise InputError("a model in memory cannot play on a cluster; save it and give its folder as the model")
        found = play(config, loaded.agent(config.sampling) if loaded else None)
        found.raise_if_no_result()
        collection, report = found.collection, found.report
        played = list(collection)
        if rubric is not None:
            rubric.timeout_s = config.limits.step_timeout_s
            played = rubric.score_all(played)
            report |= {"not_scored": rubric.to_json()} if rubric.failed else {}
            report |= {"scored_lowest": lowest} if (lowest := rubric.lowest_to_json()) else {}
            report |= {"judged": costs} if (costs := rubric.costs()) else {}
            # The scored trajectories in the place of those that were played.
            with replacing(collection.trajectories) as draft, Writer(draft, batch=1024) as writer:
                for trajectory in played:
                    writer.write(trajectory)
    return Records(played, "\n".join(_summary(report)), report=report, path=None if output is None else Path(output))


@dataclass(frozen=True)
class Played:
    """A collection with its report; `num_finished` counts the episodes that were asked for and are recorded."""

    collection: Collection
    report: dict[str, Any]
    num_finished: int

    def raise_if_no_result(self) -> None:
        """Raises AllLostError or NoExpertError where no episode says anything about the agent."""
        if not self.num_finished:
            raise AllLostError(self.report["lost"])
        if self.report["stops"].get(NO_EXPERT) == self.report["episodes"]:
            raise NoExpertError(self.report["episodes"])


def play(config: CollectConfig, agent: Agent | None = None) -> Played:
    """Plays what is missing in the collection's folder, with the agent that the settings name unless one is given."""
    environment_class = configured(find(config.environment.name), config.environment.options)
    tasks = wanted_tasks(environment_class, config.environment, config.tasks, config.seed)
    wanted = list(attempts(tasks, config.attempts, config.seed))
    with Collection(config) as collection:
        missing = collection.missing(wanted)
        if len(missing) < len(wanted):
            then = "resuming" if missing else "nothing to play"
            recorded = f"{len(wanted) - len(missing)} of {plural(len(wanted), 'episode is', 'episodes are')} recorded"
            console.err().print(f"{recorded}; {then}")
        report = None if missing else collection.old_report()
        if report is None:
            report = event_loop.run(_play_missing(config, collection, missing, agent))
            collection.report(report)
        collection.finish([attempt.id for attempt in wanted])
    return Played(collection, report, sum(attempt.id in collection.finished for attempt in wanted))


async def _play_missing(
    config: CollectConfig, collection: Collection, missing: list[Attempt], agent: Agent | None
) -> dict[str, Any]:
    environment_class = configured(find(config.environment.name), config.environment.options)
    tally, more = Tally(), dict[str, Any]()

    async def collected(runner: Runner) -> Tally:
        with EpisodesProgress(len(missing)) as bar:
            return await collect_episodes(
                runner, missing, collection.add_in_thread,
                concurrency=config.concurrency, retries=config.retries,
                tell=lambda tally: bar.tell(tally.to_json()),
            )  # fmt: skip

    if config.cluster.address is not None:
        from bough.rollouts.ray_workers import collecting_runner

        more["worker_losses"] = 0
        if missing:
            async with collecting_runner(config, environment_class) as runner:
                tally = await collected(runner)
                more["worker_losses"] = runner.worker_losses
    else:
        try:
            if missing:
                agent = agent or await make_agent(config.agent, config.sampling)
                tally = await collected(LocalRunner.of(environment_class, agent, config.limits))
        finally:
            if agent is not None:
                await agent.close()
            await shut_down(environment_class)
        if agent is not None:  # closed: its model is free for other work
            rescored = rescore(agent, collection, config.rescore)
            collection.keep_rescored(rescored.logprobs)
            num_drawn, num_states = sampled(getattr(getattr(agent, "engine", None), "tokens", None))
            more = rescored.numbers | (
                {"sampled_tokens": num_drawn, "sampled_states": num_states} if num_states else {}
            )
    # The numbers of every episode in the folder, with the failures and the time of this run.
    whole = Tally(faults=tally.faults, lost=tally.lost, seconds=tally.seconds)
    for trajectory in collection:
        whole.add(trajectory)
    return whole.to_json() | {"episodes_this_run": tally.episodes} | more


def _summary(report: dict[str, Any]) -> list[str]:
    rate = report["success_rate"]
    lines = [f"{plural(report['episodes'], 'episode')}, success {'unknown' if rate is None else f'{rate:.1%}'}"]
    for title, name in (("stopped", "stops"), ("errors", "errors"), ("faults", "faults")):
        if report[name]:
            lines.append(f"{title}: " + ", ".join(f"{count} {what}" for what, count in report[name].items()))
    if report["lost"]:
        lines.append(f"lost: {len(report['lost'])}")
    if "sampled_states" in report:
        drawn, states = report["sampled_tokens"], report["sampled_states"]
        lines.append(f"{drawn:,} tokens sampled from {states:,} states: shared {drawn / states:.1f}×")
    if "logprob_gap_max" in report:
        gap = f"mean {report['logprob_gap_mean']:.2g}, largest {report['logprob_gap_max']:.2g}"
        tokens = plural(report["rescored_tokens"], "token")
        lines.append(f"sampled against trained log-probabilities: {gap} on {tokens}")
    return lines


def collect_command(config: CollectConfig) -> int:
    announce_episodes(config)

    played = play(config)
    if config.as_json:
        console.print_json({"output": str(config.output)} | played.report)
    else:
        for line in lost_lines(played.report["lost"]):
            console.err().print(console.printable(line), style="red", markup=False)
        lines = [*_summary(played.report), f"episodes in {config.output / TRAJECTORIES}"]
        console.out().print("\n".join(lines), markup=False)
    played.raise_if_no_result()
    return 0


COMMANDS = {
    "collect": Command(
        CollectConfig,
        collect_command,
        "  bough collect --model smollm2 --environment household --tasks 64 --attempts 8 --output runs/collect\n"
        "  bough collect --model expert --environment household --tasks 200 --output runs/demonstrations",
        stage=Stage(None, "trajectories", "trajectories.jsonl", "output"),
    ),
}
