"""Statistics of a data file: one pass, a few bytes of memory per record."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import mean, median
from typing import Any

from bough.formats.base import Sample
from bough.types import Group, Pair, Trajectory, Turn


class Statistics:
    """Add records, then ask for `rows` ((name, value) lines to print) or `to_json`."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.turns: Counter[str] = Counter()
        self.unscored: Counter[str] = Counter()
        self.tasks: set[str] = set()
        self.tokens: Counter[str] = Counter()
        self.numbers: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))

    def add(self, sample: Sample) -> None:
        self.kinds[type(sample).__name__.lower()] += 1
        self.tasks.add(sample.task.id)
        if isinstance(sample, Trajectory):
            self._add_trajectory(sample)
        elif isinstance(sample, Pair):
            self._add_pair(sample)
        else:
            self._add_group(sample)

    def _add_trajectory(self, trajectory: Trajectory) -> None:
        self.outcomes[{True: "success", False: "failure", None: "unknown"}[trajectory.success]] += 1
        self.numbers["turns per trajectory"].append(len(trajectory.turns))
        for name, value in trajectory.rewards.items():
            if value is None:
                self.unscored[name] += 1
            else:
                self.numbers[f"reward: {name}"].append(value)
        self._add_turns(trajectory.turns)

    def _add_pair(self, pair: Pair) -> None:
        self.reasons[pair.reason or "no reason given"] += 1
        if pair.margin is not None:
            self.numbers["margin"].append(pair.margin)
        self.numbers["messages before the pair splits"].append(len(pair.start))
        self._add_turns(pair.chosen)
        self._add_turns(pair.rejected)

    def _add_group(self, group: Group) -> None:
        self.numbers["attempts per group"].append(len(group.attempts))
        for attempt in group.attempts:
            self._add_trajectory(attempt)

    def _add_turns(self, turns: list[Turn]) -> None:
        for turn in turns:
            self.turns["trained" if turn.trained else "context only"] += 1
            if turn.correction is not None:
                self.turns["corrected"] += 1
            self.numbers["characters per reply"].append(len(turn.reply.content))
            if turn.reward is not None:
                self.numbers["reward per turn"].append(turn.reward)
            if turn.reply.tool_calls:
                self.turns["with tool calls"] += 1
            if turn.call is not None:
                self.turns["with exact tokens"] += 1
                self.tokens["shown"] += len(turn.call.prompt_ids)
                self.tokens["answered"] += len(turn.call.completion_ids)

    def rows(self) -> Iterator[tuple[str, str]]:
        yield "tasks", f"{len(self.tasks):,}"
        for name, counter in self._counters().items():
            yield name, ", ".join(f"{count:,} {what}" for what, count in counter.most_common())
        for name, values in self.numbers.items():
            yield name, f"min {min(values):g}, median {median(values):g}, mean {mean(values):.4g}, max {max(values):g}"

    def to_json(self) -> dict[str, Any]:
        counters = {name.replace(" ", "_"): dict(counter.most_common()) for name, counter in self._counters().items()}
        numbers = {
            name: {"min": min(values), "median": median(values), "mean": mean(values), "max": max(values)}
            for name, values in self.numbers.items()
        }
        return {"tasks": len(self.tasks), **counters, "numbers": numbers}

    def _counters(self) -> dict[str, Counter[str]]:
        named = {
            "records": self.kinds, "outcomes": self.outcomes, "reasons": self.reasons,
            "turns": self.turns, "tokens": self.tokens, "not scored": self.unscored,
        }  # fmt: skip
        return {name: counter for name, counter in named.items() if counter}
