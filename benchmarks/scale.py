"""Predicts online RL on 8 to 10,000 GPUs by simulation: episodes/s, staleness, idle GPUs, time to new weights.

    python -m benchmarks.scale                     # writes scale.json, results/scale.md and docs/plots/scale.svg
    python -m benchmarks.scale --validate FILE     # with {"rows": [{"workers": 1, "episodes_per_s": 2.5}, …]}

`scale_simulator.py` simulates, `scale_constants.yaml` has the measured and the assumed
numbers, `scale_scenarios.py` the clusters. Nothing here needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.scale_report import draw_scale, tables
from benchmarks.scale_scenarios import RESULTS, ROOT, Scenario, constants, scenarios
from benchmarks.scale_simulator import simulate
from benchmarks.scale_validation import compare_streaming, compare_workers, workers_table

SEED = 0
FOUND = Path(__file__).with_name("scale.json")


def row(scenario: Scenario) -> dict[str, Any]:
    """What is predicted for a scenario."""
    cluster = scenario.cluster
    outcome = simulate(cluster, batches=scenario.batches, in_flight=scenario.in_flight, seed=SEED)
    numbers = {
        "episodes_per_s": outcome.episodes_per_s,
        "learnt_per_s": outcome.learnt_per_s,
        "staleness": outcome.staleness,
        "stale_share": outcome.stale_share,
        "rollout_idle": outcome.rollout_idle,
        "rollout_use": outcome.rollout_use,
        "learner_idle": outcome.learner_idle,
        "driver_busy": outcome.driver_busy,
        "weights_everywhere_s": outcome.everywhere_s,
        "seconds_per_batch": outcome.seconds / len(outcome.measured),
        "update_s": outcome.measured[-1].trained_s,
        "replayed_share": outcome.replayed / outcome.episodes,
    }
    return {
        "table": scenario.table,
        **scenario.shown,
        "rollout_gpus": cluster.rollout_gpus,
        "learner_gpus": cluster.learner_gpus,
        "batch_groups": cluster.batch_size,
        "shrink": outcome.shrink,
        **{name: float(f"{value:.4g}") for name, value in numbers.items()},
    }


def write(found: dict[str, Any]) -> None:
    """The JSON, the tables and the figure."""
    FOUND.write_text(json.dumps(found, indent=1) + "\n")
    made = "Made by `python -m benchmarks.scale` from `benchmarks/scale_constants.yaml`."
    head = f"# Online RL on a cluster, simulated\n\n{made}"
    parts = [f"## {title}\n\n{table}" for title, table in tables(found).items()]
    (RESULTS / "scale.md").write_text("\n\n".join([head, *parts]) + "\n")
    (ROOT / "docs" / "plots" / "scale.svg").write_text(draw_scale(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--validate", type=Path, help="a JSON file of measured rows; compare, and write nothing")
    options = parser.parse_args()
    if options.validate:
        print(workers_table(compare_workers(json.loads(options.validate.read_text()))))
        return
    values, rows = constants(), []
    for scenario in scenarios(values):
        begin = time.process_time()
        rows.append(row(scenario))
        print(f"{scenario.table} {scenario.shown}: {rows[-1]['episodes_per_s']:,.0f} episodes/s "
              f"({time.process_time() - begin:.1f} s)", flush=True)  # fmt: skip
    measured = json.loads((RESULTS / "scale-workers.json").read_text())
    found = {
        "seed": SEED,
        "constants": {name: asdict(constant) for name, constant in values.items()},
        "rows": rows,
        "workers": {"machine": measured["machine"], "load": measured["load"], "rows": compare_workers(measured)},
        "streaming": compare_streaming(),
    }
    write(found)


if __name__ == "__main__":
    main()
