"""Where the time of an update goes, for `population.py`: kernels of the GPU, and seconds of the host by part."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

import torch
from measure import now
from torch.profiler import ProfilerActivity, profile

# What an update is made of, by file and function; backward passes are one call into torch.
PARTS = {
    "rows": ("population_step.py", "__init__"),
    "forward": ("population.py", "answers"),
    "losses": ("population_step.py", "_loss"),
    "backward": ("graph.py", "_engine_run_backward"),
    "numbers": ("population_step.py", "_gradient"),
    "clipping": ("update.py", "clip"),
    "optimizer": ("update.py", "apply"),
}
TOP = 12


def profiled(update: Callable[[], object]) -> str:
    """Lines about one update; call it after updates that are not counted."""
    begin = now()
    update()
    seconds = now() - begin
    host = ", ".join(f"{part} {1000 * value:.0f}" for part, value in host_seconds(update).items())
    return f"{1000 * seconds:.0f} ms, of the host in ms: {host}\n\n{operations(update, seconds)}"


def host_seconds(update: Callable[[], object]) -> dict[str, float]:
    """The host's seconds in each part of an update, with a profiler's own time in them.

    Where the host waits for the GPU, the waiting is in it: mostly in "numbers".
    """
    watch = cProfile.Profile()
    watch.runcall(update)
    found: dict[str, float] = {}
    for (file, _, name), (_, _, _, seconds, _) in pstats.Stats(watch).stats.items():  # type: ignore[attr-defined]
        for part, (its_file, function) in PARTS.items():
            if name == function and file.endswith(f"/{its_file}"):
                found[part] = found.get(part, 0.0) + seconds
    return {part: found[part] for part in PARTS if part in found}


def operations(update: Callable[[], object], seconds: float) -> str:
    """The GPU's kernels, or a CPU's operations: how many, how long, and the longest of them."""
    cuda = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        update()
        now()
    table = [(one.key, one.count, _microseconds(one, cuda) / 1e6) for one in seen.key_averages()]
    count, busy = sum(number for _, number, _ in table), sum(took for *_, took in table)
    lines = [f"{count:,} {'kernels' if cuda else 'operations'}, {busy:.3f} s of {seconds:.3f}"]
    for key, number, took in sorted(table, key=lambda one: -one[2])[:TOP]:
        lines.append(f"    {1000 * took:8.1f} ms {number:6,} × {key[:100]}")
    return "\n".join(lines)


def _microseconds(one: object, cuda: bool) -> float:
    return float(getattr(one, "self_device_time_total" if cuda else "self_cpu_time_total"))
