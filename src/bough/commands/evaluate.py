"""`bough eval`: models in an environment, or a model on a held-out file."""

from __future__ import annotations

from bough.config.evaluation import EvalConfig


def evaluate(config: EvalConfig) -> int:
    return _episodes(config) if config.environment.name else _held_out(config)


def _episodes(config: EvalConfig) -> int:
    from bough.terminal.episodes import announce_episodes

    announce_episodes(config)

    from bough import event_loop
    from bough.evaluation.contest import contest
    from bough.evaluation.results import FILE_NAME
    from bough.rollouts.collect import lost_lines
    from bough.terminal import console
    from bough.terminal.evaluation import ContestProgress, show

    with ContestProgress() as progress:
        results = event_loop.run(contest(config, progress))
    for model in results.models:
        for line in lost_lines({f"{model.name}, {one.task}#{one.attempt}": one.why for one in model.lost}):
            console.err().print(console.printable(line), style="red", markup=False)
    assert config.output is not None
    file = config.output / FILE_NAME
    if config.as_json:
        console.print_json({"results": str(file), "reports": results.reports, "comparisons": results.comparisons})
        return 0
    show(results.reports, results.comparisons, results.level)
    console.out().print(f"\nresults in {file}", markup=False)
    return 0


def _held_out(config: EvalConfig) -> int:
    from bough.terminal.console import announce

    to = f"; the report goes to {config.output}" if config.output else ""
    announce(f"measuring {config.agent.model[0]} on {config.held_out.file}{to}")

    from bough.commands.held_out import held_out

    return held_out(config)
