"""The report of an evaluation: a table of rates with their intervals, and comparisons in words."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bough.ledger import Ledger, plural
from bough.terminal.console import LINE_EVERY_S, NumbersProgress, err, is_live, out, print_table, printable

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


# The members of a population as a table: live while an evolution runs, and printed at its end.

Line = Mapping[str, Any]
HEADINGS = ("member", "fitness", "loss", "age", "updates", "parent", "mutation", "settings")


class MembersProgress:
    """A live table on stderr, removed at the end; without a terminal, a line every few seconds.

    A survivor shows its last fitness until it is measured again.
    """

    def __init__(self, generations: int | None = None) -> None:
        self.console, self.generations = err(), generations
        self.members: dict[str, dict[str, Any]] = {}
        self.title = ""
        self._number = self._steps = 0
        self._doing = ""
        self._said_at = float("-inf")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if is_live(self.console):
            self._live = Live(get_renderable=self.rendered, console=self.console, transient=True, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def rendered(self) -> RenderableType:
        """What is on the screen now."""
        if not self.members:
            return Text("loading the model", "dim")
        return Group(Text(self.title, "bold"), members_table(list(self.members.values())))

    def begin(self, generation: int, members: Sequence[Line], steps: int) -> None:
        self._enter(generation, members)
        self._steps = steps
        self._say(f"training, 0 of {plural(steps, 'update')}")

    def updated(self, done: int, losses: Mapping[str, float]) -> None:
        for name, loss in losses.items():
            self.members[name]["loss"] = loss
        self._say(f"training, {done} of {plural(self._steps, 'update')}")

    def played(self, done: int, total: int) -> None:
        self._show(f"{self._doing}; {done} of {plural(total, 'episode')} played")

    def measuring(self, generation: int, members: Sequence[Line]) -> None:
        self._enter(generation, members)
        self._say("measuring fitness")

    def measured(self, lines: Sequence[Line]) -> None:
        self.members = {line["name"]: dict(line) for line in lines}
        last = not any("lives" in line for line in lines)
        self._say("measuring the winner on untouched data" if last else "selecting")

    def _enter(self, generation: int, members: Sequence[Line]) -> None:
        """Makes `members` those on the screen; what is known of them otherwise stays."""
        known = {one["name"]: self.members.get(one["name"], {}) for one in members}
        self.members = {one["name"]: {**known[one["name"]], **one, "generation": generation} for one in members}
        self._number = generation

    def _say(self, doing: str) -> None:
        self._doing = doing
        self._show(doing)

    def _show(self, what: str) -> None:
        of = f" ({self._number + 1} of {self.generations})" if self.generations else ""
        self.title = f"generation {self._number}{of}: {what}"
        if not is_live(self.console) and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self.console.print(f"{self.title}{self._losses()}", markup=False)

    def _losses(self) -> str:
        """The smallest and the largest loss, as the end of a line."""
        found = [one["loss"] for one in self.members.values() if one.get("loss") is not None]
        finite = [loss for loss in found if math.isfinite(loss)]
        return f"  loss {min(finite):.3g} to {max(finite):.3g}" if finite else ""


def members_table(lines: Iterable[Line]) -> Table:
    """A row per member."""
    table = Table(*HEADINGS, box=None, pad_edge=False, header_style="bold")
    for line in lines:
        cells = [
            *(line["name"], fitness_text(line), _loss(line.get("loss"))),
            *(str(line["generation"] - line["born"]), str(line["step"]), line["parent"] or ""),
            *(mutation_text(line["mutation"]), settings_text(line)),
        ]
        table.add_row(*(escape(printable(cell)) for cell in cells))
    return table


def fitness_text(score: Line) -> str:
    """A fitness with its interval; empty before it was measured."""
    if "fitness" not in score:
        return ""
    if score["fitness"] is None:
        return "unknown"
    low, high = score["interval"] or (None, None)
    between = "" if low is None or high is None else f" ({low:.3g} to {high:.3g})"
    return f"{score['fitness']:.3g}{between}"


def mutation_text(mutation: Line | None) -> str:
    """What was changed; empty for a member of the first generation."""
    if not mutation:
        return ""
    if mutation.get("setting") is not None:
        return f"{mutation['setting']} {short(mutation.get('before'))} → {short(mutation.get('after'))}"
    return "none" if mutation.get("kind") == "no_mutation" else str(mutation.get("kind", ""))


def settings_text(member: Line) -> str:
    """The settings that may mutate, and the rank."""
    return ", ".join(
        f"{name}={short(value)}" for name, value in {**member["settings"], "lora_r": member["rank"]}.items()
    )


def short(value: Any) -> str:
    """A setting's value with at most three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if math.isfinite(value) else "not finite"


# Episodes: what begins, and its progress.


class EpisodesProgress(NumbersProgress):
    """A bar with episodes/s, tokens/s, successes and faults; plain lines if there is no terminal."""

    def __init__(self, total: int) -> None:
        super().__init__("episodes", at_once=False)
        self.total = total
        self.count_to(total)

    def tell(self, numbers: dict[str, Any]) -> None:
        """Shows the numbers of a tally."""
        episodes, seconds = numbers["episodes"], max(numbers["seconds"], 1e-9)
        rate = numbers["success_rate"]
        parts = [
            f"success {'–' if rate is None else f'{rate:.1%}'}",
            f"{episodes / seconds:.2g} episodes/s",
            f"{numbers['completion_tokens'] / seconds:,.0f} tokens/s",
        ]
        parts += [f"{count} {what}" for what, count in numbers["errors"].items()]
        parts += [plural(count, f"{what} fault") for what, count in numbers["faults"].items()]
        self.show(episodes, "  ".join(parts), f"{episodes} of {plural(self.total, 'episode')}")


# Progress of a training run: a bar with the main numbers, plain lines if there is no terminal.

SHOWN = ("loss", "accuracy", "margin", "eval_loss", "reward", "success", "eval_success")


class TrainingProgress(NumbersProgress):
    """Shows every step."""

    def __init__(self) -> None:
        super().__init__("step", at_once=True)
        self.numbers: dict[str, float] = {}

    def begin(self, num_steps: int, *ledgers: Ledger) -> None:
        self.console.print("; ".join([*map(str, ledgers), plural(num_steps, "step")]), markup=False)
        self.count_to(num_steps)

    def tell(self, values: dict[str, Any]) -> None:
        self.numbers |= {name: values[name] for name in SHOWN if name in values}
        if "tokens_per_s" in values:
            self.numbers |= {"tokens/s": values["raw_tokens_per_s"], "shared": values["shared"]}
        text = "  ".join(
            f"{name} {_short(value)}{'×' if name == 'shared' else ''}" for name, value in self.numbers.items()
        )
        self.show(values["step"], text, f"step {values['step']}")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
