"""The two streams: results on stdout, progress and notes on stderr.

Text from a model or a web page must not control the terminal: control characters are
replaced by visible ones before they are printed.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bough.ledger import Ledger, plural

WIDEST = 10_000
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class _Out(Console):
    def on_broken_pipe(self) -> None:
        """A reader that stops early (`| head`) is not a failure; rich would exit with 1."""
        raise BrokenPipeError


def out() -> Console:
    """For results. Plain text when it is not a terminal, so that it can be piped."""
    return _Out(soft_wrap=True, highlight=False)


def err() -> Console:
    """For progress, notes and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def announce(line: str) -> None:
    """A line on stderr that says what begins now."""
    err().print(f"▸ {printable(line)}", style="bold", markup=False)


def is_live(console: Console) -> bool:
    """Whether a progress bar can be drawn: on a terminal, and in a notebook that has ipywidgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def print_json(value: dict[str, Any]) -> None:
    """A report as one JSON object on stdout. Numbers that are not finite become null: JSON has none."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(console: Console, table: Table) -> None:
    """Prints a table. A pipe has no width, so nothing is cut off or wrapped there."""
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table, options=console.options.update(width=WIDEST)).maximum)
    console.print(table)


def progress(what: str, total: int | None = None) -> Progress:
    """A progress bar on stderr, removed when it is done; nothing if stderr is not a terminal."""
    console = err()
    columns = [SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()]
    bar = Progress(*columns, console=console, transient=True, disable=not is_live(console))
    bar.add_task(what, total=total)
    return bar


def printable(text: str) -> str:
    """`text` with its control characters replaced by visible ones."""
    return CONTROL.sub(lambda match: chr(0x2400 + ord(match[0])) if ord(match[0]) < 0x20 else "\ufffd", text)


# A bar that counts steps or episodes, with numbers beside it; plain lines if there is no terminal.

# Seconds between two lines if there is no terminal.
LINE_EVERY_S = 10.0


class NumbersProgress:
    """What the progress of training and of episodes have in common. `unit` is what is counted.

    The first line without a terminal comes right away or, if not `at_once`, after `LINE_EVERY_S`.
    """

    def __init__(self, unit: str, *, at_once: bool) -> None:
        self.console = err()
        columns = (
            TextColumn(unit), MofNCompleteColumn(), BarColumn(),
            TextColumn("{task.fields[numbers]}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not is_live(self.console))
        self._said_at = float("-inf") if at_once else time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def count_to(self, total: int) -> None:
        self.task = self.bar.add_task("", total=total, numbers="")

    def show(self, done: int, numbers: str, line: str) -> None:
        """Moves the bar to `done`; without a terminal prints `line` and the numbers every few seconds."""
        self.bar.update(self.task, completed=done, numbers=numbers)
        if not is_live(self.console) and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self.console.print(f"{line}  {numbers}", markup=False)


# What is seen while a model is made: our steps, and not the bars of the libraries that take them.

logger = logging.getLogger(__name__)


@contextmanager
def steps(title: str, count: int) -> Iterator[Callable[[str], None]]:
    """Give a function that says which of `count` steps begins: a bar on a terminal, a log line anywhere."""
    with progress(title, count) as bar:
        numbers = itertools.count()

        def begin(step: str) -> None:
            logger.info("%s: %s", title, step)
            bar.update(bar.task_ids[0], description=f"{title}: {step}", completed=next(numbers))

        yield begin


@contextmanager
def no_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars."""
    from transformers.utils import logging as transformers_logging

    drawn = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            transformers_logging.enable_progress_bar()


# The report of an evaluation: a table of rates with their intervals, and comparisons in words.

Json = dict[str, Any]


class ContestProgress:
    """A progress bar for each model in turn."""

    def __init__(self) -> None:
        self._bar: EpisodesProgress | None = None

    def begin(self, model: str, missing: int, on_file: int) -> None:
        self.__exit__()
        line = f"{model}: {plural(missing, 'episode')} to play, {on_file} already recorded"
        err().print(printable(line), markup=False)
        if missing:
            self._bar = EpisodesProgress(missing).__enter__()

    def tell(self, numbers: Json) -> None:
        if self._bar is not None:
            self._bar.tell(numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.__exit__()
        self._bar = None


def show(reports: Mapping[str, Any], comparisons: Sequence[Any], level: float, console: Console | None = None) -> None:
    """Prints the whole report, on stdout unless another console is given."""
    console = console or out()
    main = _table("model", f"success ({level:.0%} interval)", "episodes", "reward", "turns", "tokens", "invalid")
    for name, report in reports.items():
        main.add_row(printable(name), *row(report))
    print_table(console, main)
    intervals = [report["success"]["interval"] for report in reports.values()]
    for method in dict.fromkeys(interval["method"] for interval in intervals if interval):
        console.print(f"intervals: {method}", style="dim", markup=False)
    types = {kind for report in reports.values() for kind in report["types"]}
    made = {kind for report in reports.values() for kind, found in report["mistakes"].items() if found["mean"]}
    for title, table in (
        ("pass@k, pass^k", _passes(reports)),
        ("by type of task", _by_kind(reports, "types", "type", types if len(types) > 1 else set())),
        ("episodes with a mistake", _by_kind(reports, "mistakes", "mistake", made)),
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
    success, reward, copies = found["success"], found["reward"], found.get("copies")
    interval = success["interval"]
    between = f" ({100 * interval['low']:+.1f} to {100 * interval['high']:+.1f})" if interval else ""
    counts = [f"{found['better']} better", f"{found['worse']} worse"]
    counts += [f"{found['lost']} lost: worst case in the interval and p"] if found["lost"] else []
    counts += [f"{plural(copies, 'copy', 'copies')} left out"] if copies else []
    counts += [f"{found['left_out']} left out"] if found["left_out"] else []
    head = (
        f"{found['second']} against {found['first']}: {100 * success['mean']:+.1f} points of success{between} "
        f"on {plural(found['tasks'], 'task')} ({', '.join(counts)})"
    )
    test = f"{found['test']} p {_p(success['p'])}"
    if found["comparisons"] > 1:
        test += f", with Holm's correction for {found['comparisons']} comparisons p {_p(found['adjusted_p'])}"
    text = f"{head}; {test}; {'significant' if found['significant'] else 'not significant'}."
    if reward is not None:
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


def row(report: Json) -> list[str]:
    """The main numbers of a model: success, episodes, reward, turns, tokens, invalid replies."""
    missing = [f"{report[key]} {key}" for key in ("unknown", "lost") if report[key]]
    costs = [_number(report[key]["mean"]) for key in ("reward", "turns", "completion_tokens")]
    invalid = "–" if report["invalid_rate"] is None else f"{report['invalid_rate']:.1%}"
    return [rate(report["success"]), ", ".join([str(report["episodes"]), *missing]), *costs, invalid]


def _passes(reports: Mapping[str, Any]) -> Table:
    steps = sorted({int(k) for report in reports.values() for k in report["pass_at"]})
    table = _table("model", *(f"{name}{k}" for k in steps for name in ("pass@", "pass^")))
    for name, report in reports.items():
        if report["pass_at"]:
            cells = [rate(report[key].get(str(k))) for k in steps for key in ("pass_at", "pass_all")]
            table.add_row(printable(name), *cells)
    return table


def _by_kind(reports: Mapping[str, Any], key: str, heading: str, kinds: set[str]) -> Table:
    table = _table(heading, *map(printable, reports))
    for kind in sorted(kinds):
        table.add_row(printable(kind), *(rate(report[key].get(kind)) for report in reports.values()))
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


def rate(measure: Json | None) -> str:
    """A rate in per cent with its interval."""
    if measure is None or measure["mean"] is None:
        return "–"
    interval = measure["interval"]
    where = f" ({100 * interval['low']:.1f}–{100 * interval['high']:.1f})" if interval else ""
    return f"{100 * measure['mean']:.1f}%{where}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


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

    def __exit__(self, *_: object) -> None:
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
            found = [one["loss"] for one in self.members.values() if one.get("loss") is not None]
            finite = [loss for loss in found if math.isfinite(loss)]
            losses = f"  loss {min(finite):.3g} to {max(finite):.3g}" if finite else ""
            self.console.print(f"{self.title}{losses}", markup=False)


def members_table(lines: Iterable[Line]) -> Table:
    """A row per member."""
    table = Table(*HEADINGS, box=None, pad_edge=False, header_style="bold")
    for line in lines:
        loss = line.get("loss")
        cells = [
            *(line["name"], fitness_text(line)),
            "" if loss is None else f"{loss:.4g}" if math.isfinite(loss) else "not finite",
            *(str(line["generation"] - line["born"]), str(line["step"]), line["parent"] or ""),
            mutation_text(line["mutation"]),
            settings_text(line),
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
    settings = {**member["settings"], "lora_r": member["rank"]}
    return ", ".join(f"{name}={short(value)}" for name, value in settings.items())


def short(value: Any) -> str:
    """A setting's value with at most three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


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
            f"{name} {_number(value)}{'×' if name == 'shared' else ''}" for name, value in self.numbers.items()
        )
        self.show(values["step"], text, f"step {values['step']}")
