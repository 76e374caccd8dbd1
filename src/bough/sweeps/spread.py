"""The runs of a sweep on a cluster: each in a process on one of the nodes, as on one machine.

Every node works in the sweep's own folder, so runs find each other's finished stages and resume
after their node was lost. A process ends with the worker that started it, and a worker with the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bough.cluster.connection import connected, nodes
from bough.cluster.plan import make_plan
from bough.cluster.tasks import Tasks, WorkLostError
from bough.cluster.worker import hide_gpus
from bough.config.cluster import ClusterConfig
from bough.plural import plural
from bough.runs.run import Run
from bough.sweeps.processes import Ended, Started, log_of, order_of, play_in_child, several_at_a_time
from bough.sweeps.shared_folder import Token, check_shared, problem_here, token_in

# A lost node may not know it yet, and a file server keeps the locks of a lost client for up to 90 s.
WAIT_S = 120.0

Notify = Callable[[str], None]


def on_cluster(
    runs: Sequence[Run],
    config: ClusterConfig,
    folder: Path,
    logs: Path,
    started: Started,
    ended: Ended,
    notify: Notify,
) -> dict[str, str]:
    """Plays all runs on the cluster. The lock of `folder`, the sweep's own, is held meanwhile.

    Returns why runs failed, by the names of their folders.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with connected(config), token_in(folder) as token:
        plan = make_plan(config, nodes(), concurrency=len(runs), uses_gpu=True)
        notify(f"cluster of {plan.cluster}: up to {plural(plan.workers, 'run')} at the same time")
        tasks = Tasks(plan, config.timeout_s, notify)
        check_shared(folder, tasks.on_each_node(problem_here, token))

        def play(run: Run) -> str | None:
            order, log = order_of(run, wait_s=WAIT_S), log_of(run, logs).absolute()
            try:
                failure: str | None = tasks.call(run.folder.name, _play, order, log, token, plan.gpus_per_worker)
            except WorkLostError as error:
                return str(error)
            return failure

        return several_at_a_time(runs, plan.workers, play, tasks.stop, started, ended)


def _play(order: Mapping[str, Any], log: Path, token: Token, gpus: float) -> str | None:
    """Plays a run on the node that this is called on, with this many of its GPUs; returns why it failed."""
    if not gpus:
        hide_gpus()
    if (problem := problem_here(token)) is not None:  # it may have joined after the others were checked
        return f"a node of the cluster cannot play it: {problem}"
    return play_in_child(order, log, [], token.working_folder)
