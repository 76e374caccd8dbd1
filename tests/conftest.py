"""Shared by all tests: Bough is imported before torch, no deadlines, interrupts work, the last lines list the skips."""

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import jinja2
import pytest

from bough import bit_exact
from tests import disk, forked, versions, warm

bit_exact.prepare()  # before anything loads torch
versions.remember()
# PEFT compiles its model card's template for every adapter that is saved.
jinja2.Environment.compile = lru_cache(64)(jinja2.Environment.compile)  # type: ignore[method-assign]
disk.never_wait()

if find_spec("hypothesis") is not None:  # vLLM's environment has no need of it
    from hypothesis import HealthCheck, settings

    # Neither how busy a machine is nor chance decides a test. `--hypothesis-profile=random` draws other examples.
    settings.register_profile("bough", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("random", settings.get_profile("bough"), derandomize=False, database=None)
    settings.load_profile("bough")

# The files that take longest, the longest first: a process that is done gets the next one, so that no
# long file is left over for one process at the end. Files that compute and files that wait (sandboxes, browsers,
# servers) alternate, so that there is always work for the cores.
SLOWEST = (
    "online/test_online.py",
    "online/test_streaming.py",
    "sandbox/test_as_ordinary_user.py",
    "training/test_train.py",
    "methods/test_own_method.py",
    "report/viewer/test_pages.py",
    "worlds/interpreter/test_cheats.py",
    "policy/test_policy.py",
    "worlds/interpreter/test_environment.py",
    "test_agents.py",
    "training/test_resume.py",
    "worlds/web/test_page.py",
    "engines/local/test_engine.py",
    "worlds/interpreter/test_reasoning.py",
    "test_readme.py",
    "training/test_population.py",
    "experiments/test_evolve_kills.py",
    "test_examples.py",
    "experiments/test_run_kills.py",
    "worlds/web/test_environment.py",
    "engines/local/test_fused.py",
    "report/viewer/test_hostile_folders.py",
    "rollouts/test_misbehaving.py",
    "experiments/test_run.py",
)
# Tests with these markers take minutes: each has an option of its name and a make target that uses it.
ELSEWHERE = {
    "cluster": "make test-cluster runs these tests of several processes",
    "docs": "make docs runs these pages of the documentation",
}
ALONE = f"""
import os
os.environ[{bit_exact.VARIABLE!r}] = {bit_exact.STRICT!r}
from bough.bit_exact import batches_differ
print(len(batches_differ()))
"""


@pytest.fixture(autouse=True)
def _bit_exact(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that is marked so runs on the CPU, and only where its matrix products can be bit-exact at all."""
    if request.node.get_closest_marker("bit_exact") is None:
        yield
        return
    if bit_exact.batches_differ() and _nothing_helps():
        pytest.skip("matrix products on this CPU round differently with the number of rows, whatever is set")
    import torch
    from accelerate import PartialState

    PartialState._reset_state()  # it remembers which device other tests found
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        for module in (torch.cuda, torch.accelerator):
            patch.setattr(module, "is_available", lambda: False)
        yield
    PartialState._reset_state()


@cache
def _nothing_helps() -> bool:
    """Whether a fresh process that sets everything in time fares no better; if it does, the fault is ours."""
    done = subprocess.run([sys.executable, "-c", ALONE], env=os.environ, capture_output=True, text=True, check=True)
    return int(done.stdout) > 0


def pytest_addoption(parser: pytest.Parser) -> None:
    for name in ELSEWHERE:
        parser.addoption(f"--{name}", action="store_true", help=f"run the tests that are marked {name} too")


def pytest_configure(config: pytest.Config) -> None:
    _share_cores(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    # Files start in the order in which they were collected, not by how many tests they have.
    config.option.loadscopereorder = False
    # A shell starts background jobs with SIGINT ignored, and so would be the programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The process that starts the workers, or runs all tests itself.
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.add_cleanup(warm.start_server(forked.to_collect(config)))


def _share_cores(processes: int) -> None:
    """Processes that run tests beside each other share the cores. More threads than cores spin while they wait."""
    if processes > 1:
        threads = os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        if "torch" in sys.modules:  # a forked process: see forked.py
            sys.modules["torch"].set_num_threads(int(threads))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is loaded and collected stays until the end: walking through it again and again would find no garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    first = {tests / name: rank for rank, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))
    left_out = {name: reason for name, reason in ELSEWHERE.items() if not config.getoption(f"--{name}")}
    for item in items:
        for name in left_out.keys() & {marker.name for marker in item.iter_markers()}:
            item.add_marker(pytest.mark.skip(left_out[name]))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs in the loop of the browser that it is given, or in one of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run = given["tab"].run if "tab" in given else given.get("run", asyncio.run)
    run(pyfuncitem.obj(**given))
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if not counts:
        return
    terminalreporter.write_sep("=", "skipped tests")
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        terminalreporter.write_line(f"{count:5}  {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test or a whole file was skipped. It comes as file, line and text from another process as well."""
    place = report.longrepr
    return str(place[2]).removeprefix("Skipped: ") if isinstance(place, tuple) else str(place)
