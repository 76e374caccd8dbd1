"""Every model plays the same tasks with the same seeds.

    OUTPUT/results.json           outcomes, reports, comparisons
    OUTPUT/models/NAME/           one model's episodes: a collection, as `bough collect` writes it

A contest that was killed resumes with the missing episodes. Tasks are looked at
in their order, never in the order in which episodes end: quick failures end first.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from bough.config.evaluation import EvalConfig
from bough.config.groups import CollectConfig, LimitsConfig, SamplingConfig
from bough.config.parts import leaves
from bough.environments.base import Environment
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.environments.tasks import configured, digest, task_family
from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.intervals import looks
from bough.evaluation.results import FILE_NAME, Lost, ModelResult, Outcome, Results, task_type
from bough.evaluation.success import report
from bough.files import refuse_links, text_digest, without_absolute, working_directory
from bough.models.resolve import model_name
from bough.rollouts.agents import NO_EXPERT, make_agent
from bough.rollouts.collect import AllLostError, Collection, NoExpertError, collect
from bough.rollouts.runner import Attempt, LocalRunner, Runner, attempts, wanted_tasks
from bough.terminal import console
from bough.types import Task

# What fixes a model's replies, besides the model.
SETTINGS = {"engine", "adapter", "chat_template", *leaves(SamplingConfig), *leaves(LimitsConfig)}


class Watcher(Protocol):
    """Receives progress."""

    def begin(self, model: str, missing: int, on_file: int) -> None: ...

    def tell(self, numbers: dict[str, Any]) -> None: ...


async def contest(
    config: EvalConfig, watcher: Watcher | None = None, names: Mapping[str, str] | None = None
) -> Results:
    """Plays what is not yet on file, and writes and returns the results.

    Raises AllLostError where every episode is lost, NoExpertError where the expert has no advice for any task.

    `names` are what the results call the models of the settings, by default `model_name`.
    """
    assert config.output is not None
    names = names or {model: model_name(model) for model in config.agent.model}
    if not config.overwrite:
        _keeps_others(config, names)
    environment_class = configured(find(config.environment.name), config.environment.options)
    tasks = wanted_tasks(environment_class, config)
    try:
        models = [
            await _play(config, environment_class, model, names[model], tasks, watcher) for model in config.agent.model
        ]
    finally:
        await shut_down(environment_class)
    results = Results(
        environment=environment_class.name,
        options=without_absolute(config.environment.options, *working_directory()),
        split=None if config.environment.task_file else config.environment.split,
        seed=config.seed,
        attempts=config.attempts,
        level=config.statistics.level,
        stop_width=config.stop_width,
        models=models,
    )
    results = with_numbers(results, config.statistics.against, _not_compared)
    results.write(config.output / FILE_NAME)
    if not any(model.outcomes for model in models):
        raise AllLostError(
            {f"{model.name}, {one.task}#{one.attempt}": one.why for model in models for one in model.lost}
        )
    for model in models:
        if model.outcomes and all(outcome.stop == NO_EXPERT for outcome in model.outcomes):
            raise NoExpertError(len(model.outcomes))
    return results


def with_numbers(results: Results, against: Any = "first", leave_out: Callable[[str], None] | None = None) -> Results:
    """The same results with reports and comparisons recomputed from the outcomes."""
    early = results.stop_width is not None
    reports = {
        model.name: report(model.outcomes, lost=model.lost, level=results.level, sequential=early).to_json()
        for model in results.models
    }
    compared = compare(results.models, against=against, level=results.level, sequential=early, leave_out=leave_out)
    return results.model_copy(update={"reports": reports, "comparisons": [one.to_json() for one in compared]})


def _keeps_others(config: EvalConfig, names: Mapping[str, str]) -> None:
    """Raises InputError if the folder has results of models that are not evaluated now: they would be dropped."""
    assert config.output is not None
    file = config.output / FILE_NAME
    if not file.exists():
        return
    try:
        before = [model.name for model in Results.read(file).models]
    except InputError:  # nothing that could be kept
        return
    now = [names[model] for model in config.agent.model]
    if dropped := [name for name in before if name not in now]:
        together = " ".join([*before, *(name for name in now if name not in before)])
        raise InputError(
            f"{file} has results of {', '.join(dropped)}, which would be dropped; give all models (--model {together}; "
            "recorded episodes are not played again), another --output, or --overwrite"
        )


def _not_compared(why: str) -> None:
    console.err().print(console.printable(f"not compared: {why}"), style="yellow", markup=False)


async def _play(
    config: EvalConfig,
    environment_class: type[Environment],
    model: str,
    name: str,
    tasks: list[Task],
    watcher: Watcher | None,
) -> ModelResult:
    assert config.output is not None
    folder = config.output / "models" / folder_name(model)
    refuse_links(folder.parent, folder)
    settings = config.contestant(model, folder)
    faults: dict[str, str] = {}
    lost: list[Lost] = []
    runner: Runner | None = None
    with Collection(settings) as collection:
        async with AsyncExitStack() as opened:
            for count in looks(len(tasks)) if config.stop_width else [len(tasks)]:
                wanted = list(attempts(tasks[:count], config.attempts, config.seed))
                missing = collection.missing(wanted)
                if watcher is not None:
                    watcher.begin(name, len(missing), len(wanted) - len(missing))
                if missing:
                    if runner is None:
                        runner = await opened.enter_async_context(_opened(settings, environment_class))
                    tally = await collect(
                        runner, missing, collection.add_in_thread,
                        concurrency=settings.concurrency, retries=settings.retries,
                        tell=(lambda tally: watcher.tell(tally.to_json())) if watcher is not None else None,
                    )  # fmt: skip
                    faults |= tally.lost
                outcomes = _outcomes(collection, wanted, environment_class)
                lost = _lost(collection, wanted, faults)
                if config.stop_width and _narrow(outcomes, lost, config.stop_width, config.statistics.level):
                    break
    shown = {key: value for key, value in settings.flat_dump().items() if key in SETTINGS}
    shown = without_absolute(shown, *working_directory(), config.output.absolute())
    return ModelResult(name=name, settings=shown, outcomes=outcomes, lost=lost)


@asynccontextmanager
async def _opened(config: CollectConfig, environment_class: type[Environment]) -> AsyncIterator[Runner]:
    """What plays the episodes of one model, until the end of the block."""
    if config.cluster.address is not None:
        from bough.rollouts.ray_workers import collecting_runner

        async with collecting_runner(config, environment_class) as runner:
            yield runner
        return
    agent = await make_agent(config.agent, config.sampling)
    try:
        yield LocalRunner.of(environment_class, agent, config.limits)
    finally:
        await agent.close()


def _outcomes(collection: Collection, wanted: Iterable[Attempt], environment_class: type[Environment]) -> list[Outcome]:
    """In the order of the tasks; a folder may hold more episodes than were asked for."""
    rules = environment_class.mistake_rules()
    order = [attempt.id for attempt in wanted]
    asked = set(order)
    played = {record.id: Outcome.of(record, rules) for record in collection if record.id in asked}
    return [played[id] for id in order if id in played]


def _lost(collection: Collection, wanted: Iterable[Attempt], faults: dict[str, str]) -> list[Lost]:
    """What is still missing: an episode that was lost at one look may have been played at the next."""
    return [
        Lost(
            task=attempt.task.id, digest=digest(attempt.task), type=task_type(attempt.task),
            family=task_family(attempt.task), attempt=int(attempt.id.rpartition("#")[2]),
            why=faults.get(attempt.id, "it was not played"),
        )
        for attempt in collection.missing(wanted)
    ]  # fmt: skip


def _narrow(outcomes: list[Outcome], lost: list[Lost], width: float, level: float) -> bool:
    interval = report(outcomes, lost=lost, level=level, sequential=True).success.interval
    return interval is not None and interval.width <= width


def folder_name(model: str) -> str:
    """A model's name as that of a folder; names that would fall together are kept apart by a digest."""
    plain = re.sub(r"[^\w.-]+", "_", model).strip("._")[-80:]
    if plain == model:
        return plain
    return f"{plain}-{text_digest(model, size=3)}"
