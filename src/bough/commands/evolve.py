"""`bough.evolve`: a population of adapters on records, selected by what they achieve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.commands.models import LoadedModel, ModelLike, TemporaryFolder, TrainedModel, model_name
from bough.commands.objects import (
    EnvironmentLike,
    Rewards,
    Source,
    StrPath,
    file_of,
    in_memory,
    reward_weights,
    where_to_play,
)
from bough.commands.table import Command, Stage
from bough.config.keywords import make_config, settings_of
from bough.config.run_folder import MetricsFile, RunDir
from bough.errors import InputError
from bough.experiments.evolve_settings import EvolveConfig
from bough.ledger import plural
from bough.terminal import console

if TYPE_CHECKING:
    from bough.commands.preference import PreferenceGym


class EvolvedModel(TrainedModel):
    """The winner: a trained model with the `lineage` of all members, one dictionary per member and generation.

    `report` has the fitness by which it was `selected`, that on `untouched` records or tasks, and
    the `shrinkage` between the two.
    """

    def __init__(self, *given: Any, lineage: Sequence[dict[str, Any]], **named: Any) -> None:
        super().__init__(*given, **named)
        self.lineage = list(lineage)

    def __repr__(self) -> str:
        selected, untouched = (self.report[key]["fitness"] for key in ("selected", "untouched"))
        facts = f"{self.report['metric']} {selected} when selected, {untouched} on untouched data"
        return f"<{self.name}: {self.report['winner']['name']}, {facts}; weights in {self.path}>"


@settings_of(EvolveConfig, "recipe", "own_agent")
def evolve(
    model: ModelLike,
    train_file: Source | PreferenceGym | None = None,
    *,
    eval_file: Source | None = None,
    test_file: Source | None = None,
    environment: EnvironmentLike | None = None,
    rewards: Rewards | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> EvolvedModel:
    """Train a population of adapters with different settings and breed it by fitness; returns the winner.

    `train_file`, `eval_file` and `test_file` are records in memory or paths: what members learn
    from, what they are compared on, and what only the winner is measured on. Without the last two,
    shares of the first are held out. With `environment`, a name or a class, members are compared by
    their success there; with `method="grpo"` they also learn from what they play there, and there
    is no `train_file`. `rewards` are names or functions, as in `bough.collect`. A `PreferenceGym` in
    place of `train_file` stands for its training and test data. `mutate` gives the settings that differ:
    `{"learning_rate": "1e-6..1e-4"}`.
    """
    from bough.commands.preference import PreferenceGym
    from bough.experiments.evolve import evolve as run

    if isinstance(train_file, PreferenceGym):
        if eval_file is not None:
            raise InputError("a PreferenceGym has its own held-out pairs; leave out eval_file")
        gym = train_file
        train_file, eval_file = gym.train_dataset, gym.test_dataset
    temporary = TemporaryFolder()
    start = model.save(temporary.path / "start") if isinstance(model, LoadedModel) else model
    folder = Path(output_dir) if output_dir is not None else temporary.path / "evolve"
    sources = {"train_file": train_file, "eval_file": eval_file, "test_file": test_file}
    named: dict[str, Any] = {key: file_of(one) for key, one in sources.items() if one is not None}
    play = where_to_play(environment, None) | ({"rewards": reward_weights(rewards)} if rewards else {})
    config = make_config(EvolveConfig, "evolve", settings, model=model_name(start), output_dir=folder, **named, **play)
    found = run(config, *map(in_memory, sources.values()), notify=console.announce)
    name = model.name if isinstance(model, LoadedModel | TrainedModel) else model_name(model)
    return EvolvedModel(
        f"{name}+evolve", found.weights,
        metrics=MetricsFile.read(RunDir(folder).metrics), report=found.report, ledgers=found.ledgers,
        lineage=found.lineage, keeps=(temporary, model),
    )  # fmt: skip


# `bough evolve`.


def evolve_command(config: EvolveConfig) -> int:
    from bough.experiments.evolve import evolve as run
    from bough.terminal.console import fitness_text, members_table, settings_text

    found = run(config, notify=console.announce)
    if config.as_json:
        console.print_json({**found.report, "folder": str(found.folder), "weights": str(found.weights)})
        return 0
    out, report = console.out(), found.report
    last = [line for line in found.lineage if line["generation"] == report["generations"] - 1]
    console.print_table(out, members_table(last))
    winner, metric = report["winner"], report["metric"]
    out.print(f"\nwinner {winner['name']}: {settings_text(winner)}", markup=False)
    out.print(f"{metric} {fitness_text(report['selected'])} when it was selected", markup=False)
    kept = f"{metric} {fitness_text(report['untouched'])} on data that no member was selected on"
    shrinkage = report["shrinkage"]
    out.print(kept if shrinkage is None else f"{kept}: shrinkage {shrinkage:.3g}", markup=False)
    empty = report.get("empty_updates", 0)
    note = f" and {empty:,} that taught nothing" if empty else ""
    out.print(
        f"{plural(report['updates'], 'update')}{note}, {plural(report['tokens_computed'], 'token')} computed",
        markup=False,
    )
    out.print(f"weights in {found.weights}", markup=False)
    return 0


COMMANDS = {
    "evolve": Command(
        EvolveConfig,
        evolve_command,
        "  bough evolve --train-file pairs.jsonl --model smollm2 --mutate learning_rate=1e-6..1e-4 beta=0.01..0.5\n"
        "  bough evolve agilerl-population --model smollm2 --train-file pairs.jsonl\n"
        "  bough evolve --method sft --train-file demos.jsonl --environment web --mutate learning_rate=1e-5..1e-3",
        stage=Stage(
            "pairs",
            "model",
            "final",
            "output_dir",
            "train_file",
            resumes=True,
            reads_by_method={"sft": "demonstrations", "grpo": None},
        ),
        essential=(
            *("recipe", "method", "model", "train_file", "eval_file", "test_file"),
            *("set", "mutate", "population_size", "generations", "steps", "halving", "tournament_size", "elitism"),
            *("output_dir", "resume", "overwrite", "seed", "as_json", "metric", "environment", "options", "split"),
            *("eval_tasks", "temperature", "max_new_tokens", "max_turns", "concurrency", "rewards"),
            *("max_updates", "max_tokens", "max_minutes", "cluster", "workers", "report_to"),
        ),
    ),
}
