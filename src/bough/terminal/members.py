"""The members of a population as a table: live while an evolution runs, and printed at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bough.plural import plural
from bough.terminal.console import err, is_live, printable
from bough.terminal.progress import LINE_EVERY_S

Line = Mapping[str, Any]
HEADINGS = ("member", "fitness", "loss", "age", "updates", "parent", "mutation", "settings")


class MembersProgress:
    """A live table on stderr, removed at the end; without a terminal, a line every few seconds.

    A member that lives on shows its last fitness until it is measured again.
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
    if mutation.get("other_parent") is not None:
        return f"crossover with {mutation['other_parent']}"
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
