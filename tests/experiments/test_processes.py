import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from bough.experiments import sweep_processes as processes
from bough.experiments.run import LOCK, Run
from bough.experiments.sweep_processes import gpu_share, order_of, several_at_a_time
from bough.files import locked
from bough.rollouts.ray import ClusterLostError
from tests.experiments.counting import configured

# The second environment does not exist.
BROKEN = "defaults.environment=tests.environments.worlds:Counting,tests.environments.worlds:NoSuchWorld"
RECIPE = "name: two\nmodel: expert\nstages:\n  - eval: {tasks: 3}\n"


def test_runs_in_processes_report_their_results_and_their_failures(tmp_path: Path):
    sweep = configured(tmp_path, BROKEN, seeds=1, recipe=RECIPE, jobs=2, set=[])
    lines: list[str] = []
    rows = sweep.play(lines.append)
    assert [row.success.mean for row in rows] == [1.0, None]
    (failed,) = sweep.failed
    assert "NoSuchWorld" in failed and "NoSuchWorld" in sweep.failed[failed]
    assert lines[-1].endswith("2 of 2 runs done") and sum(line.startswith("run ") for line in lines) == 2
    assert "01-eval" in (sweep.folder / "logs" / f"{sweep.runs[0].folder.name}.log").read_text()


def test_runs_beside_each_other_have_equal_parts_of_the_gpus_memory(monkeypatch: pytest.MonkeyPatch):
    for name in processes.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert gpu_share(4) == {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.237"}
    assert gpu_share(1) == {}
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # the user's own
    assert gpu_share(4) == {}


PART = """
import os
os.environ |= {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.25"}
import torch
torch.zeros(1, device="cuda")
print(torch.cuda.get_per_process_memory_fraction())
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_torch_reads_a_process_part_of_the_memory():
    done = subprocess.run([sys.executable, "-c", PART], capture_output=True, text=True, check=True)
    assert float(done.stdout) == 0.25


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path):
    sweep = configured(tmp_path, "eval.max_turns=2", seeds=1, recipe=RECIPE)
    run: Run = sweep.runs[0]
    with sweep.shared.claimed(sweep.stamps[0][0][1]):  # it waits for this stage
        child = subprocess.Popen(
            [sys.executable, "-m", "bough.experiments.sweep_processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            answer, said = child.communicate(json.dumps(order_of(run)).encode() + b"\n", timeout=200)
        finally:
            child.kill()
        assert (answer, child.returncode) == (b"", 1) and b"Traceback" not in said
    assert not (run.folder / "01-eval/results.json").exists()


def test_a_process_waits_for_one_that_is_still_in_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    held, naps = ExitStack(), list[float]()

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            held.close()

    monkeypatch.setattr(processes.time, "sleep", sleep)
    held.enter_context(locked(tmp_path / LOCK, wait=False))
    processes.wait_until_free(tmp_path / LOCK, 0)  # as on one machine, where the run itself says who is there
    assert naps == []
    processes.wait_until_free(tmp_path / LOCK, 600)
    assert len(naps) == 3


def test_an_error_that_is_not_a_run_s_own_stops_the_others(tmp_path: Path):
    sweep = configured(tmp_path, "eval.max_turns=2,3,4", seeds=1, recipe=RECIPE)
    stopped, ended = threading.Event(), list[str]()

    def play(run: Run) -> str | None:
        if run is sweep.runs[0]:
            raise ClusterLostError("no node is left")
        assert stopped.wait(60)
        return "it was stopped"

    with pytest.raises(ClusterLostError):
        several_at_a_time(
            sweep.runs, 2, play, stopped.set, lambda _run, _number: None, lambda run, _: ended.append(run.folder.name)
        )
    assert stopped.is_set() and ended == []
