"""What holds for every test: how long Hypothesis may take, and the last lines of a run, which say what was skipped."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest

if find_spec("hypothesis") is not None:  # vLLM's environment has no need of it
    from hypothesis import HealthCheck, settings

    # How busy a machine is decides no test.
    settings.register_profile("bough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("bough")


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
