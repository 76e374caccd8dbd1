"""The simulator beside runs that were made: workers on one machine, and batches at several limits of staleness."""

from __future__ import annotations

import math
from statistics import fmean, quantiles
from typing import Any

from benchmarks.scale_model import Cluster, Driver, Engine, Episodes, Learners, Network
from benchmarks.scale_simulator import simulate

# benchmarks/results/streaming.md: per staleness, what a run of 11 batches (after the first) of 16 episodes showed.
STREAMING = {
    0: {"seconds_per_batch": 10.00, "staleness": 0.00, "stale_share": 0.0},
    1: {"seconds_per_batch": 4.08, "staleness": 0.68, "stale_share": 72 / 768},
    2: {"seconds_per_batch": 2.97, "staleness": 1.34, "stale_share": 69 / 768},
}
# From its row of staleness 0 alone: 7% of the 10 s of a batch are training, 27% sampling 16 episodes of 32 tokens. How
# much a step takes with more episodes in it does not follow from that, so both extremes are simulated: every
# token takes its time, or every step takes the same time (chosen so that sampling takes 27%).
TRAINING_S = 0.7
ENGINES = {
    "each token takes its time": Engine(0.0, 2.7 / (16 * 32), 32),
    "each step takes the same": Engine(0.011, 0.0, 32),
}
BATCHES, RUNS = 11, 40


def workers_cluster(measured: dict[str, Any], first: dict[str, Any], num_workers: int, episode_s: float) -> Cluster:
    """`num_workers` processes that only play, each at the speed of one; more workers than cores share them."""
    tokens = first.get("tokens_per_episode", 100.0)
    share = max(1.0, num_workers / measured.get("cores", math.inf))
    slots = first.get("slots", 8)
    return Cluster(
        engine=Engine(0.0, episode_s / tokens * share, slots),
        episodes=Episodes(tokens),
        network=Network(1e9, 1e9, 0.0),
        driver=Driver(first.get("driver_cpu_s_per_episode", 0.0), measured.get("call_s", 0.0)),
        learner=Learners(math.inf),
        rollout_gpus=num_workers,
        learner_gpus=1,
        batch_size=4 * num_workers * slots,
        group_size=1,
        max_staleness=4,
        weights=0.0,
        local=True,
    )


def compare_workers(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Predicted against measured episodes/s, from the row with the fewest workers.

    A row needs `workers` and `episodes_per_s`; `episodes_per_cpu_s`, where it is there, is
    the sum of each worker's episodes per CPU second, which other work on the machine does
    not change much. Then that is compared too, as if each worker had a core.
    """
    rows = sorted(measured["rows"], key=lambda row: row["workers"])
    first, found = rows[0], []
    for row in rows:
        entry = {"workers": row["workers"]}
        for name, alone in (("episodes_per_s", False), ("episodes_per_cpu_s", True)):
            if name not in row:
                continue
            machine = {**measured, "cores": math.inf} if alone else measured
            episode_s = first["workers"] / first[name]
            outcome = simulate(workers_cluster(machine, first, row["workers"], episode_s))
            entry[name] = float(f"{row[name]:.4g}")
            entry[f"predicted_{name}"] = float(f"{outcome.episodes_per_s:.4g}")
            entry[f"error_{name}"] = round(outcome.episodes_per_s / row[name] - 1, 3)
        found.append(entry)
    return found


def workers_table(rows: list[dict[str, Any]]) -> str:
    """The comparison as a Markdown table; the first row is what the others are predicted from."""
    lines = []
    for name, unit in (("episodes_per_s", "wall time"), ("episodes_per_cpu_s", "CPU time of the workers")):
        for row in rows:
            if name in row:
                lines.append(
                    f"| {unit} | {row['workers']} | {row[name]:.3g} | {row[f'predicted_{name}']:.3g} "
                    f"| {row[f'error_{name}']:+.0%} |"
                )
    return "\n".join(["| by | workers | episodes/s measured | predicted | error |", "|---|---|---|---|---|", *lines])


def streaming_cluster(max_staleness: int, engine: Engine) -> Cluster:
    """The run of `streaming.py`: 4 × 4 episodes of 4 turns a batch, 32 slots, steps of 0.6 s with a heavy tail."""
    return Cluster(
        engine=engine,
        episodes=Episodes(32, turns=4, wait_s=math.exp(-1.2 + 1.2**2 / 2), wait_tail=1.2),
        network=Network(1e9, 1e9, 0.0),
        driver=Driver(0.0, 0.0),
        learner=Learners(math.inf, update_s=TRAINING_S),
        rollout_gpus=1,
        learner_gpus=1,
        batch_size=4,
        group_size=4,
        max_staleness=max_staleness,
        weights=0.0,
        overlap=False,  # when that table was made, the engine stood still while the policy trained
        local=True,
    )


def compare_streaming() -> list[dict[str, Any]]:
    """Measured rows and predicted ones: the mean and the middle 90% of runs of the measured length."""
    found: list[dict[str, Any]] = []
    for max_staleness, measured in STREAMING.items():
        found.append({"max_staleness": max_staleness, "what": "measured", **measured})
        for name, engine in ENGINES.items():
            cluster = streaming_cluster(max_staleness, engine)
            runs = [simulate(cluster, batches=BATCHES, warm_up=1, seed=seed, to_the_end=True) for seed in range(RUNS)]
            numbers = {
                "seconds_per_batch": [run.seconds / BATCHES for run in runs],
                "staleness": [run.staleness for run in runs],
                "stale_share": [run.stale_share for run in runs],
            }
            found.append(
                {"max_staleness": max_staleness, "what": name} | {key: _spread(of) for key, of in numbers.items()}
            )
    return found


def _spread(numbers: list[float]) -> list[float]:
    cuts = quantiles(numbers, n=20)
    return [round(number, 4) for number in (fmean(numbers), cuts[0], cuts[-1])]
