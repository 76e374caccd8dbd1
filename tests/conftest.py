"""Shared by all tests: Bough is imported before torch, no deadlines, interrupts work, the last lines list the skips."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

import pytest

from bough import bit_exact

if find_spec("hypothesis") is not None:  # vLLM's environment has no need of it
    from hypothesis import HealthCheck, settings

    # How busy a machine is decides no test.
    settings.register_profile("bough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("bough")

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


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and so would be the programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
