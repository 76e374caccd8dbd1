"""The end of every test run: what was skipped and why, with a count per reason."""

from __future__ import annotations

from collections import Counter

import pytest


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
