"""The report of an evaluation: a table of rates with their intervals, and comparisons in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from bough.plural import plural
from bough.terminal.console import err, out, print_table, printable
from bough.terminal.episodes import EpisodesProgress

Json = dict[str, Any]


class ContestProgress:
    """A progress bar for each model in turn."""

    def __init__(self) -> None:
        self._bar: EpisodesProgress | None = None

    def begin(self, model: str, missing: int, on_file: int) -> None:
        self._end()
        err().print(
            printable(f"{model}: {plural(missing, 'episode')} to play, {on_file} already recorded"), markup=False
        )
        if missing:
            self._bar = EpisodesProgress(missing).__enter__()

    def tell(self, numbers: Json) -> None:
        if self._bar is not None:
            self._bar.tell(numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
        self._bar = None


def show(reports: Mapping[str, Any], comparisons: Sequence[Any], level: float, console: Console | None = None) -> None:
    """Prints the whole report, on stdout unless another console is given."""
    console = console or out()
    print_table(console, _success(reports, level))
    for method in {report["success"]["interval"]["method"]: None for report in reports.values() if _known(report)}:
        console.print(f"intervals: {method}", style="dim", markup=False)
    for title, table in (
        ("pass@k, pass^k", _passes(reports)),
        ("by type of task", _types(reports)),
        ("episodes with a mistake", _mistakes(reports)),
    ):
        if table.row_count:
            console.print(f"\n{title}", style="bold")
            print_table(console, table)
    _failures(console, reports)
    if comparisons:
        console.print()
    for comparison in comparisons:
        console.print(printable(sentence(comparison)), style="bold" if comparison["significant"] else "", markup=False)


def sentence(found: Json) -> str:
    """One comparison in words."""
    success = found["success"]
    head = (
        f"{found['second']} against {found['first']}: {_points(success['mean'])} points of success"
        f"{_points_interval(success['interval'])} on {plural(found['tasks'], 'task')}"
        f" ({found['better']} better, {found['worse']} worse{_missing(found)})"
    )
    test = f"{found['test']} p {_p(success['p'])}"
    if found["comparisons"] > 1:
        test += f", with Holm's correction for {found['comparisons']} comparisons p {_p(found['adjusted_p'])}"
    parts = [head, test, "significant" if found["significant"] else "not significant"]
    text = "; ".join(parts) + "."
    if (reward := found["reward"]) is not None:
        interval = reward["interval"]
        where = f" ({interval['low']:+.3g} to {interval['high']:+.3g})" if interval else ""
        text += f" Reward {reward['mean']:+.3g}{where}, p {_p(reward['p'])}."
    return text if found["significant"] else f"{text} {_outlook(found)}"


def _outlook(comparison: Json) -> str:
    found, tasks = comparison["outlook"], comparison["tasks"]
    could = f"{plural(tasks, 'task is', 'tasks are')} too few to detect any difference"
    if found["detectable"] is not None:
        points = f"{100 * found['detectable']:.0f} points"
        could = f"{plural(tasks, 'task detects', 'tasks detect')} a true difference of {points} with 80% power"
    if found["tasks"] is None:
        return f"No difference was seen; {could}."
    fixed = " chosen in advance" if "any stopping time" in comparison["test"] else ""
    enough = f"about {plural(found['tasks'], 'task')}{fixed} would be enough"
    return f"If the true difference is the one seen, {enough}; {could}."


def _success(reports: Mapping[str, Any], level: float) -> Table:
    table = _table("model", f"success ({level:.0%} interval)", "episodes", "reward", "turns", "tokens", "invalid")
    for name, report in reports.items():
        missing = [f"{report[key]} {key}" for key in ("unknown", "lost") if report[key]]
        table.add_row(
            printable(name),
            _rate(report["success"]),
            ", ".join([str(report["episodes"]), *missing]),
            _number(report["reward"]["mean"]),
            _number(report["turns"]["mean"]),
            _number(report["completion_tokens"]["mean"]),
            "–" if report["invalid_rate"] is None else f"{report['invalid_rate']:.1%}",
        )
    return table


def _passes(reports: Mapping[str, Any]) -> Table:
    steps = sorted({int(k) for report in reports.values() for k in report["pass_at"]})
    table = _table("model", *(f"{name}{k}" for k in steps for name in ("pass@", "pass^")))
    for name, report in reports.items():
        if report["pass_at"]:
            none: Json = {"mean": None, "interval": None}
            cells = [_rate(report[key].get(str(k), none)) for k in steps for key in ("pass_at", "pass_all")]
            table.add_row(printable(name), *cells)
    return table


def _types(reports: Mapping[str, Any]) -> Table:
    kinds = sorted({kind for report in reports.values() for kind in report["types"]})
    table = _table("type", *map(printable, reports))
    if len(kinds) > 1:
        none: Json = {"mean": None, "interval": None}
        for kind in kinds:
            cells = [_rate(report["types"].get(kind, none)) for report in reports.values()]
            table.add_row(printable(kind), *cells)
    return table


def _mistakes(reports: Mapping[str, Any]) -> Table:
    table = _table("mistake", *map(printable, reports))
    kinds = {kind for report in reports.values() for kind, rate in report["mistakes"].items() if rate["mean"]}
    none: Json = {"mean": None, "interval": None}
    for kind in sorted(kinds):
        table.add_row(kind, *(_rate(report["mistakes"].get(kind, none)) for report in reports.values()))
    return table


def _failures(console: Console, reports: Mapping[str, Any]) -> None:
    for name, report in reports.items():
        parts = []
        for what, counts in (("failures", report["failures"]), ("errors in replies", report["errors"])):
            if counts:
                parts.append(f"{what}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        if parts:
            console.print(printable(f"\n{name}  " + "; ".join(parts)).replace("\u240a", "\n"), markup=False)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _known(report: Json) -> bool:
    return report["success"]["interval"] is not None


def _rate(measure: Json) -> str:
    if measure["mean"] is None:
        return "–"
    interval = measure["interval"]
    where = f" ({100 * interval['low']:.1f}–{100 * interval['high']:.1f})" if interval else ""
    return f"{100 * measure['mean']:.1f}%{where}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _points_interval(interval: Json | None) -> str:
    return f" ({_points(interval['low'])} to {_points(interval['high'])})" if interval else ""


def _missing(found: Json) -> str:
    lost = f", {found['lost']} lost: worst case in the interval and p" if found["lost"] else ""
    copies = found.get("copies")  # not in files from before copies were noticed
    lost += f", {plural(copies, 'copy', 'copies')} left out" if copies else ""
    return f"{lost}, {found['left_out']} left out" if found["left_out"] else lost


def _p(value: float) -> str:
    return f"= {value:.2g}" if value >= 0.0001 else "< 0.0001"
