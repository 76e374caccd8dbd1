"""Runs of a sweep on two nodes. Runs wait for a stage that the test holds, so nothing depends on who is quick."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.experiments.sweep import FILE_NAME, Sweep
from bough.files import write_json
from tests.experiments.counting import ENVIRONMENT, configured
from tests.rollouts.ray.real.clusters import DEADLINE_S, TestCluster, started, until

pytestmark = pytest.mark.cluster

TURNS = "after.max_turns=2,4"


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    """Its nodes import what this process can import, whatever the folder that a test works in."""
    with started(env_vars={"PYTHONPATH": ":".join([str(Path.cwd()), *filter(None, sys.path)])}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table of the same sweep in this process."""
    sweep = configured(tmp_path_factory.mktemp("whole"), TURNS)
    sweep.play(lambda _: None)
    return (sweep.folder / "results.csv").read_text()


def num_begun(sweep: Sweep) -> int:
    """How many runs have begun."""
    return sum((run.folder / "recipe.yaml").exists() for run in sweep.runs)


def processes(folder: Path) -> list[int]:
    """The processes of runs that work in `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"bough.experiments.sweep_processes" in (process / "cmdline").read_bytes()
                and (process / "cwd").readlink() == folder
            ):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@contextmanager
def held(sweep: Sweep) -> Iterator[None]:
    """No run can get past its first stage."""
    write_json(sweep.folder / FILE_NAME, {"recipe": "counting"})
    with sweep.shared.claimed(sweep.stamps[0][0][1]), sweep.shared.claimed(sweep.stamps[1][0][1]):
        yield


def test_runs_of_a_node_that_is_killed_end_elsewhere_in_the_same_table(
    breakable: TestCluster, tmp_path: Path, whole: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    sweep = configured(tmp_path, TURNS, cluster=breakable.address)
    lines: list[str] = []
    with ThreadPoolExecutor() as pool, held(sweep):
        playing = pool.submit(sweep.play, lines.append)
        until(lambda: num_begun(sweep) == 2 or playing.done())
        breakable.remove(0)
        until(lambda: any("was lost; its work is done elsewhere" in line for line in lines))
        until(lambda: len(processes(tmp_path)) == 1)
    playing.result(DEADLINE_S)
    assert sweep.failed == {} and (sweep.folder / "results.csv").read_text() == whole
    assert lines[0] == "cluster of 3 nodes, 2 CPUs and 0 GPUs: up to 2 runs at the same time"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_stopped_leaves_no_process_and_resumes(
    cluster: TestCluster, tmp_path: Path, whole: str, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    sweep = configured(tmp_path, TURNS, cluster=cluster.address)
    command = [sys.executable, "-m", "bough", "sweep", "counting.yaml", "--vary", TURNS, "--seeds", "2", "-o", "sweep"]
    with held(sweep):
        driver = subprocess.Popen([*command, "--set", ENVIRONMENT, "--cluster", cluster.address], cwd=tmp_path)
        until(lambda: num_begun(sweep) == 2 or driver.poll() is not None)
        assert driver.poll() is None and len(processes(tmp_path)) == 2
        os.kill(driver.pid, how)
        driver.wait(DEADLINE_S)
        until(lambda: not processes(tmp_path))
    resumed = sweep if how == signal.SIGKILL else configured(tmp_path, TURNS)  # the latter in this process
    resumed.play(lambda _: None)
    assert resumed.failed == {} and (sweep.folder / "results.csv").read_text() == whole


def test_a_run_that_fails_by_itself_fails_as_on_one_machine(
    cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    broken = "defaults.environment=tests.environments.worlds:Counting,tests.environments.worlds:NoSuchWorld"
    recipe = "name: two\nmodel: expert\nstages:\n  - eval: {tasks: 3}\n"
    sweep = configured(tmp_path, broken, seeds=1, recipe=recipe, set=[], cluster=cluster.address)
    rows = sweep.play(lambda _: None)
    assert [row.success.mean for row in rows] == [1.0, None]
    (failed,) = sweep.failed
    assert "NoSuchWorld" in sweep.failed[failed]


def test_a_folder_that_nodes_do_not_see_is_refused(
    cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    elsewhere = nullcontext(tmp_path / "sweep" / "token")  # as if on another disk
    monkeypatch.setattr("bough.experiments.sweep_processes.shared_token", lambda _: elsewhere)
    sweep = configured(tmp_path, TURNS, cluster=cluster.address)
    with pytest.raises(InputError, match="no node of the cluster can be used: it does not see the files in"):
        sweep.play(lambda _: None)
    assert not any((tmp_path / "sweep/runs").glob("*"))
