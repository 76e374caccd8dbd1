"""What all training methods share: the command, the Python function and the stage of a recipe.

A method is one file. It has the settings, a class with the loss (`bough.training.method.Method`),
and a line that makes it a command:

    COMMANDS = {"mine": training_command(MineConfig, Mine, reads="demonstrations")}

`bough.methods` is a group of entry points too: a package of yours can bring a method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bough.commands.table import Command, Stage
from bough.config.groups import ReportConfig
from bough.config.keywords import make_config, settings_of
from bough.config.run_folder import RunDir
from bough.config.training import TrainingConfig
from bough.ledger import plural

if TYPE_CHECKING:
    from bough.commands.models import ModelLike, TrainedModel
    from bough.commands.objects import Source, StrPath
    from bough.training.method import Data
    from bough.training.run import Trained

# The settings of every method that `--help` explains.
ESSENTIAL = (
    *("model", "adapter", "output_dir", "resume", "overwrite", "seed", "as_json"),
    *("train_file", "eval_file", "max_length"),
    *("use_lora", "lora_r", "lora_alpha", "qlora"),
    *("learning_rate", "num_epochs", "max_steps", "batch_size"),
    *("token_budget", "bf16", "save_steps", "report_to"),
)
# The same of a method that samples while it trains.
ESSENTIAL_ONLINE = (
    *("environment", "options", "own_agent", "rewards", "group_size", "concurrency", "max_staleness"),
    *("temperature", "max_new_tokens", "max_turns", "eval_every", "eval_tasks"),
)
# What trains by the settings: on the data of the settings' files, or on that given here.
Train = Callable[..., "Trained"]


def training_command(
    config: type[TrainingConfig],
    method: Callable[[Any], Any] | None = None,
    *,
    reads: str,
    train: Train | None = None,
    examples: str = "",
    essential: Sequence[str] = (),
    **stage: Any,
) -> Command:
    """The command of a training method.

    `method` makes the method from the settings; or `train` trains by itself. `reads` is the kind of
    data that the method takes from earlier stages of a recipe: demonstrations, pairs or groups.
    `essential` are the settings of its own that `--help` explains, besides those that every method has.
    """
    if train is None:
        assert method is not None, "a method, or a function that trains"
        train = partial(train_on_data, method)
    return Command(
        config,
        partial(_run, train),
        examples,
        Stage(reads, "model", "final", "output_dir", "train_file", resumes=True, **stage),
        _function(config, train),
        (*ESSENTIAL, *essential),
    )


def train_on_data(
    method: Callable[[Any], Any],
    config: TrainingConfig,
    data: Data | None = None,
    held_out: Data | None = None,
    around: Any = None,
) -> Trained:
    """Trains on records: those of the settings' files, or those given here. `around` is that of `train`."""
    from bough.training.run import train

    return train(config, method(config), data, held_out, around)


# The Python function.


def _function(config_class: type[TrainingConfig], work: Train) -> Callable[..., TrainedModel]:
    """The function of a method that has none of its own."""

    @settings_of(config_class, "train_file")
    def function(
        model: ModelLike,
        records: Source,
        *,
        eval_file: Source | None = None,
        output_dir: StrPath | None = None,
        **settings: Any,
    ) -> TrainedModel:
        return trained_model(config_class, work, model, records, eval_file, output_dir, settings)

    function.__name__ = function.__qualname__ = config_class.command
    function.__doc__ = f"{config_class.__doc__}\n\nThe arguments are those of `bough.sft`.\n{function.__doc__}"
    return function


def trained_model(
    config_class: type[TrainingConfig],
    work: Train,
    model: ModelLike,
    records: Source | None,
    eval_file: Source | None,
    output_dir: StrPath | None,
    settings: dict[str, Any],
) -> TrainedModel:
    """Trains by settings in which objects may take the place of names."""
    from bough.commands.models import LoadedModel, TemporaryFolder, TrainedModel, model_name
    from bough.commands.objects import file_of, in_memory
    from bough.config.run_folder import MetricsFile

    method, temporary = config_class.command, TemporaryFolder()
    start = model.save(temporary.path / "start") if isinstance(model, LoadedModel) else model
    folder = Path(output_dir) if output_dir is not None else temporary.path / method
    config = make_config(
        config_class, method, settings,
        model=model_name(start), output_dir=folder, train_file=file_of(records), eval_file=file_of(eval_file),
    )  # fmt: skip
    trained = work(config, in_memory(records), in_memory(eval_file))
    run = RunDir(folder)
    name = model.name if isinstance(model, LoadedModel | TrainedModel) else model_name(model)
    return TrainedModel(
        f"{name}+{method}", trained.weights,
        metrics=MetricsFile.read(run.metrics), report=asdict(trained.counters), ledgers=trained.ledgers,
        keeps=(temporary, model),  # the run refers to the weights it started from
    )  # fmt: skip


# The command line.

# Metrics that the closing lines compare, first against last, and what they are called there.
COMPARED = {
    "accuracy": "accuracy",
    "reward": "reward",
    "success": "success",
    "eval_loss": "held-out loss",
    "eval_accuracy": "held-out accuracy",
    "eval_success": "held-out success",
}


def _run(work: Train, config: ReportConfig) -> int:
    """Trains and prints the result, in one process for all."""
    from bough.config.run_folder import MetricsFile
    from bough.policy.processes import Processes
    from bough.terminal import console

    trained = work(config)
    if not Processes().first:
        return 0
    lines = MetricsFile.read(trained.weights.parent / "metrics.jsonl")
    values_of = {name: [line[name] for line in lines if line.get(name) is not None] for name in ("loss", *COMPARED)}
    logged = {name: values for name, values in values_of.items() if values}
    sampling, counters = _sampling(lines), trained.counters
    if config.as_json:
        report = {
            "weights": str(trained.weights),
            "steps": counters.step,
            "metrics": {name: {"first": values[0], "last": values[-1]} for name, values in logged.items()},
            "best_eval_loss": counters.best_loss,
            "tokens_trained": counters.tokens_trained,
            "tokens_computed": counters.tokens_computed,
            "tokens_without_sharing": counters.tokens_raw,
            "ledgers": trained.ledgers,
        }
        console.print_json(report | ({"sampling": sampling} if sampling else {}))
        return 0
    out = console.out()
    for name, values in logged.items():
        first, last, digits, shown, end = values[0], values[-1], 3, COMPARED.get(name, name), ""
        if name == "loss":
            digits, end = 4, f" in {plural(counters.step, 'step')}"
        elif name == "eval_loss":
            lowest = min(values)
            digits, end = 4, f" (lowest {lowest:.4g})" if lowest < last else ""
        out.print(f"{shown} {first:.{digits}g} → {last:.{digits}g}{end}")
    for line in _sampling_lines(sampling):
        out.print(line)
    shared = counters.tokens_raw / max(1, counters.tokens_computed)
    computed = f"{counters.tokens_computed:,} computed, {shared:.1f}× fewer than without sharing"
    out.print(f"{plural(counters.tokens_trained, 'token')} trained; {computed}")
    out.print(f"weights in {trained.weights}", markup=False)
    return 0


def _sampling(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Where the time of an online run went, over all its batches; empty for other runs."""
    batches = [line for line in lines if "batch_seconds" in line]
    seconds = sum(batch["batch_seconds"] for batch in batches)
    if not seconds:
        return {}
    means = (
        *("sampling_share", "training_share", "overlap_share", "idle_share"),
        *("sampled_tokens_per_s", "episodes_in_flight"),
    )
    return {
        **{name: sum(batch.get(name, 0.0) * batch["batch_seconds"] for batch in batches) / seconds for name in means},
        "staleness_mean": fmean(batch.get("staleness_mean", 0.0) for batch in batches),
        "staleness_max": max(batch.get("staleness_max", 0) for batch in batches),
        "calls_stale": batches[-1].get("calls_stale", 0),
        "calls_off_policy": sum(batch.get("calls_off_policy", 0) for batch in batches),
    }


def _sampling_lines(sampling: dict[str, float]) -> Iterator[str]:
    if not sampling:
        return
    both = f"{sampling['overlap_share']:.0%} both, " if sampling["overlap_share"] else ""
    yield (
        f"{sampling['sampling_share']:.0%} of the time sampling, {sampling['training_share']:.0%} training, "
        f"{both}{sampling['idle_share']:.0%} idle"
    )
    yield (
        f"{sampling['sampled_tokens_per_s']:,.0f} tokens/s sampled over the whole run, "
        f"{sampling['episodes_in_flight']:.3g} episodes in flight"
    )
    if sampling["staleness_max"] or sampling["calls_stale"]:
        yield (
            f"staleness {sampling['staleness_mean']:.2g} batches on average, {sampling['staleness_max']} at most; "
            f"{plural(sampling['calls_stale'], 'call')} dropped as too old"
        )
    if sampling["calls_off_policy"]:
        yield f"{plural(sampling['calls_off_policy'], 'call')} sampled with top_p, top_k or min_p: slightly off-policy"
