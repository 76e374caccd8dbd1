"""Predicts online RL on 8 to 10,000 GPUs by simulation: episodes/s, staleness, idle GPUs, time to new weights.

    python -m benchmarks.scale                     # writes scale.json, results/scale.md and docs/plots/scale.svg
    python -m benchmarks.scale --validate FILE     # with {"rows": [{"workers": 1, "episodes_per_s": 2.5}, …]}

`scale_simulator.py` simulates, `scale_constants.yaml` has the measured and the assumed numbers. Nothing here
needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import yaml
from benchmarks.scale_simulator import IN_FLIGHT, Cluster, shrink_of, simulate

from bough.experiments.sweep_table import FAINT, WIDTH, document, text_at

HERE = Path(__file__).parent
FOUND, CONSTANTS, RESULTS = HERE / "scale.json", HERE / "scale_constants.yaml", HERE / "results"
SEED = 0

# The clusters that are simulated: measured constants, and what is varied.

GROUP, STALENESS, FIXED_BATCH, LARGE = 8, 2, 512, 2048
GPUS = [8, 32, 128, 512, 2048, 10_000]
SIZES = {"10 MB": 10e6, "100 MB": 100e6, "1 GB": 1e9, "10 GB": 10e9}


def constants() -> dict[str, dict[str, Any]]:
    """Each has a value, its unit, where it was measured (or "assumed"), and how it follows from there."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(CONSTANTS.read_text())
    return found


def cluster_of(gpus: int) -> Cluster:
    """The usual cluster: both sides equally fast, two episodes per batch and slot, and workers that write.

    Learners are whole nodes of 8 above 8 GPUs.
    """
    of = {name: constant["value"] for name, constant in constants().items()}
    slots, step_s = int(of["engine_slots"]), of["engine_step_s"]
    taken = ("longest", "teach_share", "writer_s", "call_s", "notice_s", "bytes_per_token", "learner_tokens_per_s")
    taken += ("learner_bandwidth", "latency_s", "load_bandwidth", "node_mtbf_s", "restart_s", "slow_share", "slowdown")
    usual = Cluster(
        rollout_gpus=gpus, learner_gpus=0, batch_size=0, group_size=GROUP, max_staleness=STALENESS, slots=slots,
        step_s=step_s, slot_s=(slots / of["engine_tokens_per_s"] - step_s) / slots, mean_tokens=of["sampled_tokens"],
        tail=of["length_tail"], turns=int(of["turns"]), read_per_turn=of["read_tokens_per_turn"],
        prompt_tokens=of["prompt_tokens"], bandwidth=of["object_bandwidth"], weights=SIZES["100 MB"],
        gpus_per_node=int(of["gpus_per_node"]), local=gpus <= of["gpus_per_node"], **{name: of[name] for name in taken},
    )  # fmt: skip
    sampled = GROUP * usual.mean_tokens
    trained = usual.tree(sampled) / sampled * usual.teach_share
    share = usual.tokens_per_s * trained / (usual.tokens_per_s * trained + usual.learner_tokens_per_s)
    unit = 1 if gpus <= 8 else 8
    learners = unit * min(gpus // unit - 1, max(1, round(gpus // unit * share)))
    rollout = gpus - learners
    batch = 2 * rollout * slots // GROUP
    return replace(usual, rollout_gpus=rollout, learner_gpus=learners, batch_size=batch, writers=rollout)


def scenarios() -> Iterator[tuple[dict[str, Any], Cluster]]:
    """What is shown of each row, with its table, and the cluster."""
    for gpus in GPUS:
        usual = cluster_of(gpus)
        yield {"table": "one writer", "GPUs": gpus}, replace(usual, writers=1)
        yield {"table": "fixed batch", "GPUs": gpus}, replace(usual, batch_size=FIXED_BATCH)
        for size, weights in SIZES.items():
            yield {"table": "workers write", "GPUs": gpus, "weights": size}, replace(usual, weights=weights)
    usual = cluster_of(LARGE)
    large, slow = SIZES["10 GB"], {"slow_share": 0.1, "slowdown": 4.0}
    longer = {"mean_tokens": 16_384, "turns": 256}
    varied: dict[str, dict[str, Any]] = {
        "as it is": {},
        "max_staleness 0": {"max_staleness": 0},
        "max_staleness 1": {"max_staleness": 1},
        "max_staleness 4": {"max_staleness": 4},
        "weights change between episodes only": {"swap_mid_episode": False},
        "half the batch": {"batch_size": usual.batch_size // 2},
        "all episodes equally long": {"tail": 0.0},
        "length tail 1.5, longest 32 × the mean": {"tail": 1.5, "longest": 32.0},
        "episodes of 16,384 tokens": longer,
        "the same, one writer": longer | {"writers": 1},
        "each turn waits 1 s for its environment": {"wait_s": 1.0, "wait_tail": 1.0},
        "no slow GPUs": {"slow_share": 0.0},
        "10% of the GPUs 4 × slower": slow,
        "the same, all get as much": slow | {"slow_get_less": False},
        "10 GB": {"weights": large},
        "10 GB, episodes wait for the newest weights": {"weights": large, "wait_for_newest": True},
        "10 GB, link of 1.25 GB/s": {"weights": large, "bandwidth": 1.25e9},
        "10 GB, link of 12.5 GB/s": {"weights": large, "bandwidth": 12.5e9},
        "100 MB, all from one node": {"fan_out": 0},
        "10 GB, all from one node": {"weights": large, "fan_out": 0},
    }
    failing: dict[str, dict[str, Any]] = {
        "no failures": {"node_mtbf_s": 0.0},
        "a node fails once a day": {"node_mtbf_s": 86_400.0},
        "a node fails once an hour": {"node_mtbf_s": 3600.0},
        "once an hour, back after 10 s": {"node_mtbf_s": 3600.0, "restart_s": 10.0},
    }
    for table, changes in (("varied", varied), ("failing", failing)):
        for what, change in changes.items():
            yield {"table": table, "what": what}, replace(usual, **change)


def row(shown: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """What is predicted. Failures are rare: more batches, of a cluster that is shrunk further."""
    batches, in_flight = (120, 400) if shown["table"] == "failing" else (8, IN_FLIGHT)
    found = simulate(cluster, batches=batches, in_flight=in_flight, seed=SEED)
    return {
        **shown,
        "rollout_gpus": cluster.rollout_gpus,
        "learner_gpus": cluster.learner_gpus,
        "batch_groups": cluster.batch_size,
        "shrink": shrink_of(cluster, in_flight),
        **{name: float(f"{value:.4g}") for name, value in found.items()},
    }


# The simulator beside runs that were made: workers on one machine, and batches at several limits of staleness.

# benchmarks/results/streaming.md: per staleness, what a run of 11 batches (after the first) of 16 episodes showed.
STREAMING = {
    0: {"seconds_per_batch": 10.00, "staleness": 0.00, "stale_share": 0.0},
    1: {"seconds_per_batch": 4.08, "staleness": 0.68, "stale_share": 72 / 768},
    2: {"seconds_per_batch": 2.97, "staleness": 1.34, "stale_share": 69 / 768},
}
# From its row of staleness 0 alone: 7% of the 10 s of a batch are training, 27% sampling 16 episodes of 32 tokens. How
# much a step takes with more episodes in it does not follow from that, so both extremes are simulated: every
# token takes its time, or every step takes the same time (chosen so that sampling takes 27%). The engine stood still
# while the policy trained.
ENGINES = {"each token takes its time": (0.0, 2.7 / (16 * 32)), "each step takes the same": (0.011, 0.0)}
BATCHES, RUNS = 11, 40


def compare_workers(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Predicted against measured episodes/s, from the row with the fewest workers; more workers than cores share them.

    A row needs `workers` and `episodes_per_s`; `episodes_per_cpu_s`, where it is there, is the sum of each worker's
    episodes per CPU second, which other work on the machine does not change much. Then that is compared too, as
    if each worker had a core.
    """
    rows = sorted(measured["rows"], key=lambda row: row["workers"])
    first, found = rows[0], []
    tokens, slots = first.get("tokens_per_episode", 100.0), first.get("slots", 8)
    for one in rows:
        number, entry = one["workers"], {"workers": one["workers"]}
        for name, cores in (("episodes_per_s", measured.get("cores", math.inf)), ("episodes_per_cpu_s", math.inf)):
            if name not in one:
                continue
            slot_s = first["workers"] / first[name] / tokens * max(1.0, number / cores)
            cluster = Cluster(
                rollout_gpus=number, learner_gpus=1, batch_size=4 * number * slots, group_size=1, max_staleness=4,
                step_s=0.0, slot_s=slot_s, slots=slots, mean_tokens=tokens, call_s=measured.get("call_s", 0.0),
                writer_s=first.get("driver_cpu_s_per_episode", 0.0), local=True,
            )  # fmt: skip
            predicted = simulate(cluster)["episodes_per_s"]
            entry[name] = float(f"{one[name]:.4g}")
            entry[f"predicted_{name}"] = float(f"{predicted:.4g}")
            entry[f"error_{name}"] = round(predicted / one[name] - 1, 3)
        found.append(entry)
    return found


def streaming_runs(max_staleness: int, engine: str, runs: int = RUNS) -> list[dict[str, float]]:
    """The run of `streaming.py`: 4 × 4 episodes of 4 turns a batch, 32 slots, steps of 0.6 s with a heavy tail."""
    step_s, slot_s = ENGINES[engine]
    cluster = Cluster(
        rollout_gpus=1, learner_gpus=1, batch_size=4, group_size=4, max_staleness=max_staleness, step_s=step_s,
        slot_s=slot_s, slots=32, mean_tokens=32, turns=4, wait_s=math.exp(-1.2 + 1.2**2 / 2), wait_tail=1.2,
        update_s=0.7, overlap=False, local=True,
    )  # fmt: skip
    return [simulate(cluster, batches=BATCHES, warm_up=1, seed=seed, to_the_end=True) for seed in range(runs)]


def compare_streaming() -> Iterator[dict[str, Any]]:
    """Measured rows and predicted ones: the mean and the middle 90% of runs of the measured length."""
    for max_staleness, measured in STREAMING.items():
        yield {"max_staleness": max_staleness, "what": "measured", **measured}
        for name in ENGINES:
            runs, spread = streaming_runs(max_staleness, name), dict[str, list[float]]()
            for key in measured:
                values = [run[key] for run in runs]
                cuts = quantiles(values, n=20)
                spread[key] = [round(number, 4) for number in (fmean(values), cuts[0], cuts[-1])]
            yield {"max_staleness": max_staleness, "what": name} | spread


# The tables and the figure of `scale.json`.

Row = dict[str, Any]
SERIES = [
    ("workers write", "100 MB", "workers write, 100 MB", "#3f9b5f"),
    ("workers write", "10 GB", "workers write, 10 GB", "#3f7f9b"),
    ("one writer", None, "one writer", "#b5562f"),
    ("fixed batch", None, "workers write, batches of 512 groups", "#8a63a8"),
]
COLUMNS: dict[str, tuple[str, str]] = {
    "episodes/s": ("episodes_per_s", ",.0f"),
    "learnt tokens/s": ("learnt_per_s", ",.0f"),
    "of full engines": ("rollout_use", ".0%"),
    "rollout GPUs idle": ("rollout_idle", ".0%"),
    "learner GPUs idle": ("learner_idle", ".0%"),
    "driver or writers busy": ("driver_busy", ".0%"),
    "staleness": ("staleness", ".2f"),
    "dropped as stale": ("stale_share", ".1%"),
    "s per batch": ("seconds_per_batch", ",.1f"),
    "weights everywhere, s": ("weights_everywhere_s", ",.2f"),
}


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FOUND.read_text())
    return found


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Markdown tables by title."""
    of = {name: [row for row in found["rows"] if row["table"] == name] for name in {r["table"] for r in found["rows"]}}
    return {
        "One writer": _growing(of["one writer"]),
        "Batches of 512 groups": _growing(of["fixed batch"]),
        "Workers write": _growing([row for row in of["workers write"] if row["weights"] == "100 MB"]),
        "Size of the weights": _sizes(of["workers write"]),
        "One thing changed": _varied(of["varied"]),
        "Failing nodes": _varied(of["failing"]),
        "Predicted and measured: staleness": _streaming(found["streaming"]),
        "Constants": _constants(found["constants"]),
    }


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _cells(row: Row, without: str = "") -> list[str]:
    return [f"{row[key]:{form}}" for name, (key, form) in COLUMNS.items() if name != without]


def _growing(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        gpus = f"{row['GPUs']:,} ({row['rollout_gpus']:,} + {row['learner_gpus']:,})"
        lines.append([gpus, f"{row['batch_groups']:,}", *_cells(row)])
    return markdown(["GPUs (rollout + learner)", "groups per batch", *COLUMNS], lines)


def _sizes(rows: list[Row]) -> str:
    """Learnt tokens/s and seconds until the weights are everywhere, by GPUs and size."""
    cells = {
        (row["GPUs"], row["weights"]): f"{row['learnt_per_s']:,.0f} ({row['weights_everywhere_s']:.2g} s)"
        for row in rows
    }
    lines = [[f"{gpus:,}", *(cells[gpus, size] for size in SIZES)] for gpus in GPUS]
    return markdown(["GPUs", *SIZES], lines)


def _varied(rows: list[Row]) -> str:
    left_out, usual = "driver or writers busy", rows[0]["learnt_per_s"]
    lines = [[row["what"], f"{row['learnt_per_s'] / usual:.2f}", *_cells(row, left_out)] for row in rows]
    return markdown(["changed", "relative", *(name for name in COLUMNS if name != left_out)], lines)


def _streaming(rows: list[Row]) -> str:
    def cell(value: float | list[float], form: str) -> str:
        if isinstance(value, float):
            return f"**{value:{form}}**"
        mean, low, high = value
        return f"{mean:{form}} ({low:{form}} to {high:{form}})"

    forms = {"seconds_per_batch": ".2f", "staleness": ".2f", "stale_share": ".1%"}
    lines = [
        [row["max_staleness"], row["what"], *(cell(row[name], form) for name, form in forms.items())] for row in rows
    ]
    return markdown(["max_staleness", "", "s per batch", "mean staleness", "calls dropped as too old"], lines)


def _constants(found: dict[str, Row]) -> str:
    lines = []
    for name, one in found.items():
        value, source = one["value"], one["source"]
        number = f"{value:,.6g}" if 1e-4 <= value < 1e7 else f"{value:.3g}"
        where = source if source == "assumed" else f"`benchmarks/results/{source}`"
        lines.append([f"`{name}`", number, one["unit"], where, one["how"]])
    return markdown(["constant", "value", "unit", "source", "how"], lines)


def workers_table(rows: list[Row]) -> str:
    """The comparison of workers; the first row is what the others are predicted from."""
    lines = [
        [unit, row["workers"], f"{row[name]:.3g}", f"{row[f'predicted_{name}']:.3g}", f"{row[f'error_{name}']:+.0%}"]
        for name, unit in (("episodes_per_s", "wall time"), ("episodes_per_cpu_s", "CPU time of the workers"))
        for row in rows
        if name in row
    ]
    return "\n".join(["| by | workers | episodes/s measured | predicted | error |", "|---|---|---|---|---|"]
                     + ["| " + " | ".join(map(str, line)) + " |" for line in lines])  # fmt: skip


def draw_scale(found: dict[str, Any]) -> str:
    """Learnt tokens per second and GPU over GPUs, both logarithmic: a level line loses nothing."""
    left, right, top, bottom = 80, WIDTH - 30, 15, 300
    across = lambda gpus: left + (right - left) * math.log(gpus / 8) / math.log(1250)  # noqa: E731
    down = lambda rate: bottom - (bottom - top) * math.log10(rate) / 4  # noqa: E731
    parts = []
    for rate in (1, 10, 100, 1000, 10_000):
        y = down(rate)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(text_at(left - 10, y + 4, f"{rate:,}/s", "end"))
    parts += [text_at(across(gpus), bottom + 20, f"{gpus:,}", "middle") for gpus in GPUS]
    parts.append(text_at((left + right) / 2, bottom + 40, "GPUs", "middle"))
    about = []
    for number, (table, size, label, colour) in enumerate(SERIES):
        rows = [row for row in found["rows"] if row["table"] == table and (size is None or row["weights"] == size)]
        rates = {row["GPUs"]: row["learnt_per_s"] / row["GPUs"] for row in rows}
        points = [(across(gpus), down(rate)) for gpus, rate in rates.items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        y = bottom - 92 + 20 * number
        line = f'<line x1="{left + 15}" x2="{left + 40}" y1="{y}" y2="{y}"'
        parts.append(f'{line} stroke="{colour}" stroke-width="2.5"/>')
        parts.append(text_at(left + 48, y + 4, label))
        about.append(f"{label}: " + ", ".join(f"{rate:,.0f} at {gpus:,}" for gpus, rate in rates.items()))
    return document(bottom + 52, "Predicted learnt tokens per second and GPU. " + "; ".join(about), parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--validate", type=Path, help="a JSON file of measured rows; compare, and write nothing")
    options = parser.parse_args()
    if options.validate:
        print(workers_table(compare_workers(json.loads(options.validate.read_text()))))
        return
    rows = []
    for shown, cluster in scenarios():
        rows.append(row(shown, cluster))
        print(f"{shown}: {rows[-1]['episodes_per_s']:,.0f} episodes/s", flush=True)
    measured = json.loads((RESULTS / "scale-workers.json").read_text())
    workers = {"machine": measured["machine"], "load": measured["load"], "rows": compare_workers(measured)}
    found = {"seed": SEED, "constants": constants(), "rows": rows, "workers": workers}
    found["streaming"] = list(compare_streaming())
    FOUND.write_text(json.dumps(found, indent=1) + "\n")
    head = "# Online RL on a cluster, simulated\n\nMade by `python -m benchmarks.scale` from "
    parts = [f"## {title}\n\n{table}" for title, table in tables(found).items()]
    text = "\n\n".join([f"{head}`benchmarks/scale_constants.yaml`.", *parts]) + "\n"
    (RESULTS / "scale.md").write_text(text)
    (HERE.parent / "docs" / "plots" / "scale.svg").write_text(draw_scale(found))


if __name__ == "__main__":
    main()
