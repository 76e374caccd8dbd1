import json
import subprocess
import sys
from pathlib import Path

from bough.runs.run import Run
from bough.sweeps.processes import order_of
from tests.sweeps.counting import configured

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


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path):
    sweep = configured(tmp_path, "eval.max_turns=2", seeds=1, recipe=RECIPE)
    run: Run = sweep.runs[0]
    with sweep.shared.claimed(sweep.stamps[0][0].stamp):  # it waits for this stage
        child = subprocess.Popen(
            [sys.executable, "-m", "bough.sweeps.processes"],
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
