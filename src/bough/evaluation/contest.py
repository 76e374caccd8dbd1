"""Every model plays the same tasks with the same seeds.

    OUTPUT/results.json           outcomes, reports, comparisons
    OUTPUT/models/NAME/           one model's episodes: a collection, as `bough collect` writes it

A contest that was killed resumes with the missing episodes. Tasks are looked at
in their order, never in the order in which episodes end: quick failures end first.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from bough.config.base import Config, flag, leaves, setting
from bough.config.groups import (
    BASELINES,
    AgentConfig,
    ClusterConfig,
    CollectConfig,
    LimitsConfig,
    PlayedTasksConfig,
    ReportConfig,
    SamplingConfig,
)
from bough.environments.base import Environment, configured, digest, task_family
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.intervals import looks
from bough.evaluation.results import FILE_NAME, Lost, ModelResult, Outcome, Results, task_type
from bough.evaluation.success import report, reports
from bough.files import refuse_links, text_digest, without_absolute, working_directory
from bough.models.resolve import model_name
from bough.rollouts.collect import (
    AllLostError,
    Attempt,
    Collection,
    LocalRunner,
    NoExpertError,
    Runner,
    attempts,
    collect,
    wanted_tasks,
)
from bough.rollouts.episode import NO_EXPERT, make_agent
from bough.terminal import console
from bough.terminal.console import ContestProgress
from bough.types import Task

# Settings of both uses; those of the held-out file belong to --eval-file, all others to --environment.
OF_BOTH = ("model", "chat_template", "output", "eval_file", "environment", "as_json")


class StatisticsConfig(Config):
    """Statistics."""

    level: float = Field(
        0.95, gt=0.5, lt=1, description="confidence level of the intervals; tests use the significance level 1 - level"
    )
    against: Literal["first", "all"] = Field(
        "first", description="compare every model with the first one, or all pairs of models"
    )


class EvaluatedEnvironmentConfig(PlayedTasksConfig):
    """Environment and tasks."""

    name: str = setting(
        "",
        flag="environment",
        description="the environment to play in: a name of `bough env list`, module:Class or path/to/file.py:Class",
    )
    split: str = Field("unseen", description="the split to draw tasks from: train, seen or unseen")


class ContestantsConfig(AgentConfig):
    """The agents."""

    model: Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)] = Field(  # type: ignore[assignment]
        ["smollm2"],
        min_length=1,
        description="a model, the folder of an adapter, expert or random; give several to compare them",
    )


class HeldOutFileConfig(Config):
    """A held-out file instead of an environment."""

    file: Path | None = setting(
        None, flag="eval_file", description="held-out data, in any format that `bough data formats` lists"
    )
    format: str = Field("auto", description="format of the held-out file")
    token_budget: int = Field(4096, ge=128, description="tokens per forward pass, shared tokens counted once")
    max_length: int | None = Field(
        None, ge=8, description="maximum length of a call in tokens (default: the model's context)"
    )
    stride: float = Field(
        0.25, ge=0, lt=1, description="fraction of max_length to free each time old steps are dropped"
    )


class EvalConfig(ReportConfig):
    """Evaluates models by playing in an environment, or by their likelihood of the replies in a held-out file.

    With --environment every model plays the same tasks with the same seeds; the report has
    success rates with confidence intervals and paired tests between models. With --eval-file
    it has the perplexity, token accuracy and preference accuracy of one model.
    """

    command = "eval"

    environment: EvaluatedEnvironmentConfig = EvaluatedEnvironmentConfig()
    agent: ContestantsConfig = ContestantsConfig()
    sampling: SamplingConfig = SamplingConfig(temperature=0.0)
    limits: LimitsConfig = LimitsConfig()
    cluster: ClusterConfig = ClusterConfig()
    statistics: StatisticsConfig = StatisticsConfig()
    held_out: HeldOutFileConfig = HeldOutFileConfig()
    seed: int = Field(0, ge=0, description="random seed of the tasks and of sampling")
    tasks: int = Field(
        100,
        ge=1,
        validation_alias=AliasChoices("tasks", "episodes"),
        description="number of tasks; each is played --attempts times",
    )
    attempts: int = Field(1, ge=1, description="attempts at each task, for pass@k and pass^k")
    stop_width: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="stop early at this width of the confidence interval, which is then valid at any stopping time",
    )
    concurrency: int = Field(16, ge=1, description="episodes played at the same time")
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")
    overwrite: bool = Field(False, description="delete the episodes in the output folder first")
    output: Path | None = setting(
        None,
        short="-o",
        description="with --environment a folder, in which a stopped evaluation resumes; with --eval-file a JSON file",
    )

    @model_validator(mode="after")
    def _one_use_and_what_belongs_to_it(self) -> Self:
        played, models = bool(self.environment.name), self.agent.model
        if played == (self.held_out.file is not None):
            what = "both are" if played else "neither is"
            raise ValueError(
                f"give either --environment or --agent (to play) or --eval-file (to measure likelihoods); {what} given"
            )
        use, other = ("--environment", "--eval-file") if played else ("--eval-file", "--environment")
        strays = [
            flag(leaf.flat)
            for leaf in leaves(type(self)).values()
            # A setting of the other use was changed; a file that lists every default is fine.
            if leaf.flat not in OF_BOTH and (leaf.part is HeldOutFileConfig) == played and leaf.of(self) != leaf.default
        ]
        if strays:
            raise ValueError(f"{', '.join(strays)} only has a meaning with {other}, not with {use}")
        if not played and len(models) > 1:
            raise ValueError(f"--eval-file takes one model, not {len(models)}")
        if not played and self.output is not None and self.output.is_dir():
            raise ValueError(f"--output {self.output} is a folder; with --eval-file it must be a JSON file")
        if played and self.output is None:
            raise ValueError("--output is required with --environment: the folder for episodes and results")
        if len(set(models)) < len(models):
            raise ValueError(f"--model {' '.join(models)}: a model is given twice")
        if self.agent.adapter is not None and len(models) > 1:
            raise ValueError("--adapter needs a single --model; to compare adapters, give their folders as --model")
        if self.attempts > 1 and self.sampling.temperature == 0 and set(models) - set(BASELINES):
            raise ValueError(
                f"--attempts {self.attempts} at temperature 0 would all be the same; give a --temperature above 0"
            )
        return self

    def contestant(self, model: str, folder: Path) -> CollectConfig:
        """The settings for one of the models, with its episodes in `folder`."""
        shared = leaves(CollectConfig).keys() - {"model", "output", "as_json"}
        values = {name: leaf.of(self) for name, leaf in leaves(type(self)).items() if name in shared}
        # A server that is given no model name uses the only model it has.
        named = {"model": model} if "model" in self.agent.model_fields_set or model in BASELINES else {}
        return CollectConfig(**values, **named, output=folder, rescore=0)


# What fixes a model's replies, besides the model.
SETTINGS = {"engine", "adapter", "chat_template", *leaves(SamplingConfig), *leaves(LimitsConfig)}


async def contest(
    config: EvalConfig, watcher: ContestProgress | None = None, names: Mapping[str, str] | None = None
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
    tasks = wanted_tasks(environment_class, config.environment, config.tasks, config.seed)
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

    def not_compared(why: str) -> None:
        console.err().print(console.printable(f"not compared: {why}"), style="yellow", markup=False)

    results = with_numbers(results, config.statistics.against, not_compared)
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
    found = reports(results.models, results.level, early)
    compared = compare(results.models, against=against, level=results.level, sequential=early, leave_out=leave_out)
    return results.model_copy(update={"reports": found, "comparisons": [one.to_json() for one in compared]})


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


async def _play(
    config: EvalConfig,
    environment_class: type[Environment],
    model: str,
    name: str,
    tasks: list[Task],
    watcher: ContestProgress | None,
) -> ModelResult:
    assert config.output is not None
    folder = config.output / "models" / folder_name(model)
    refuse_links(folder.parent, folder)
    settings = config.contestant(model, folder)
    faults: dict[str, str] = {}
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
                outcomes, lost = _outcomes(collection, wanted, environment_class, faults)
                if config.stop_width:
                    level = config.statistics.level
                    interval = report(outcomes, lost=lost, level=level, sequential=True).success.interval
                    if interval is not None and interval.width <= config.stop_width:
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


def _outcomes(
    collection: Collection, wanted: list[Attempt], environment_class: type[Environment], faults: dict[str, str]
) -> tuple[list[Outcome], list[Lost]]:
    """In the order of the tasks; a folder may hold more episodes than were asked for.

    Lost is what is still missing: an episode that was lost at one look may have been played at the next.
    """
    rules, asked = environment_class.mistake_rules(), {attempt.id for attempt in wanted}
    played = {record.id: Outcome.of(record, rules) for record in collection if record.id in asked}
    lost = [
        Lost(
            task=attempt.task.id, digest=digest(attempt.task), type=task_type(attempt.task),
            family=task_family(attempt.task), attempt=int(attempt.id.rpartition("#")[2]),
            why=faults.get(attempt.id, "it was not played"),
        )
        for attempt in collection.missing(wanted)
    ]  # fmt: skip
    return [played[attempt.id] for attempt in wanted if attempt.id in played], lost


def folder_name(model: str) -> str:
    """A model's name as that of a folder; names that would fall together are kept apart by a digest."""
    plain = re.sub(r"[^\w.-]+", "_", model).strip("._")[-80:]
    if plain == model:
        return plain
    return f"{plain}-{text_digest(model, size=3)}"
