"""`bough collect`: many episodes, kept as they happened."""

from __future__ import annotations

from typing import Any

from bough.config.rollouts import CollectConfig
from bough.plural import plural
from bough.terminal import console
from bough.terminal.episodes import announce_episodes


def collect(config: CollectConfig) -> int:
    announce_episodes(config)

    from bough.api.collect import play

    played = play(config)
    if config.as_json:
        console.print_json({"output": str(config.output)} | played.report)
    else:
        _tell(config, played.report)
    played.raise_if_no_result()
    return 0


def _tell(config: CollectConfig, numbers: dict[str, Any]) -> None:
    from bough.rollouts.collect import lost_lines
    from bough.rollouts.collection import TRAJECTORIES

    out = console.out()
    rate = numbers["success_rate"]
    out.print(f"{plural(numbers['episodes'], 'episode')}, success {'unknown' if rate is None else f'{rate:.1%}'}")
    for title, name in (("stopped", "stops"), ("errors", "errors"), ("faults", "faults")):
        if numbers[name]:
            counts = ", ".join(f"{count} {what}" for what, count in numbers[name].items())
            out.print(f"{title}: {counts}", markup=False)
    for line in lost_lines(numbers["lost"]):
        console.err().print(console.printable(line), style="red", markup=False)
    if "logprob_gap_max" in numbers:
        gap = f"mean {numbers['logprob_gap_mean']:.2g}, largest {numbers['logprob_gap_max']:.2g}"
        out.print(f"sampled against trained log-probabilities: {gap} on {plural(numbers['rescored_tokens'], 'token')}")
    out.print(f"episodes in {config.output / TRAJECTORIES}", markup=False)
