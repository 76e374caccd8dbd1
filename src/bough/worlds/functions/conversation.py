"""A multi-turn task: what the user says next, which calls were made, and which user turns passed their check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bough.types import Message, ToolCall
from bough.worlds.functions import back_ends, benchmark, schemas
from bough.worlds.functions.benchmark import Entry
from bough.worlds.functions.gold import gold_turns

# The benchmark gives up after this many replies with calls in one user turn.
MAX_STEPS = 20
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"


class Conversation:
    """The state of one task. The back ends' state is not in it: it follows from the calls."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.gold = gold_turns(entry)
        self.turns: list[list[list[ToolCall]]] = [[]]  # per user turn, the calls of each reply that had any
        self.steps = 0  # replies with calls in the current user turn
        self.failure: str | None = None  # the benchmark's word for what was wrong with the first failed turn
        self.passed = 0
        self.scenario = {
            "id": entry.id,
            "set": entry.set,
            "classes": entry.row["involved_classes"],
            "config": entry.row["initial_config"],
            "long_context": entry.set == "multi_turn_long_context",
        }

    @property
    def progress(self) -> float:
        """The share of user turns that passed before the first that failed."""
        return self.passed / len(self.gold)

    @property
    def last_turn(self) -> bool:
        return len(self.turns) == len(self.gold)

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """The functions that are offered from the start."""
        held_back = {name for names in self._held_back.values() for name in names}
        offered = [function for name, function in self._functions.items() if name not in held_back]
        return schemas.tools(offered, self.entry.set)

    def user_turn(self) -> tuple[Message, ...]:
        """What the user says at the beginning of the current turn; perhaps that there are more functions now."""
        number = len(self.turns) - 1
        added = self._held_back.get(str(number))
        if added is None:
            said = self.entry.row["question"][number]
            return tuple(Message(role=one["role"], content=one["content"]) for one in said)
        shown = schemas.tools([self._functions[name] for name in added], self.entry.set)
        return (Message(role="user", content=f"{json.dumps(shown, ensure_ascii=False)}\n{MORE_FUNCTIONS}"),)

    async def call(self, calls: Sequence[ToolCall], timeout_s: float) -> list[str]:
        """Makes the calls of one reply; the results as text. A call that is stopped has no effect."""
        self.steps += 1
        done = [*self.earlier_calls, *self.turn_calls]
        results = await back_ends.results(self.scenario, done, calls, timeout_s)
        made = results.index(None) if None in results else len(results)
        self.turns[-1].append(list(calls[:made]))
        told = [text for text in results if text is not None]
        return [*told, *[back_ends.STOPPED, *[back_ends.NOT_RUN] * len(calls)][: len(calls) - made]]

    async def check(self, timeout_s: float) -> str:
        """The benchmark's verdict on the current turn: "valid", or what was wrong in it or in an earlier one."""
        if self.failure is None:
            gold = self.gold[: len(self.turns)]
            verdict = await back_ends.check_turns(self.scenario, self.turns, gold, timeout_s)
            if verdict == "valid":
                self.passed += 1
            else:
                self.failure = verdict
        return self.failure or "valid"

    def next_turn(self) -> None:
        self.turns.append([])
        self.steps = 0

    @property
    def turn_calls(self) -> list[ToolCall]:
        """The calls that were made in the current user turn."""
        return [call for step in self.turns[-1] for call in step]

    @property
    def earlier_calls(self) -> list[ToolCall]:
        """The calls that were made in earlier user turns."""
        return [call for steps in self.turns[:-1] for step in steps for call in step]

    @property
    def turn_gold(self) -> list[ToolCall]:
        """The gold calls of the current user turn."""
        return self.gold[len(self.turns) - 1]

    @property
    def in_order(self) -> bool:
        """Whether all calls of this turn so far are its first gold calls."""
        made = self.turn_calls
        return len(made) <= len(self.turn_gold) and all(map(_same, made, self.turn_gold))

    def missing(self) -> list[ToolCall]:
        """The gold calls of the current turn that were not made yet."""
        return self._matched()[0]

    def unasked(self) -> list[ToolCall]:
        """The calls of the current turn that are not among its gold calls."""
        return self._matched()[1]

    def _matched(self) -> tuple[list[ToolCall], list[ToolCall]]:
        left, others = list(self.turn_gold), list[ToolCall]()
        for made in self.turn_calls:
            same = next((call for call in left if _same(call, made)), None)
            if same is None:
                others.append(made)
            else:
                left.remove(same)
        return left, others

    @property
    def _functions(self) -> dict[str, Mapping[str, Any]]:
        found = [one for name in self.entry.row["involved_classes"] for one in benchmark.documentation(name)]
        return {function["name"]: function for function in found}

    @property
    def _held_back(self) -> dict[str, list[str]]:
        """The functions that appear later, by the number of their turn."""
        held_back: dict[str, list[str]] = self.entry.row.get("missed_function", {})
        return held_back


def _same(one: ToolCall, other: ToolCall) -> bool:
    return (one.name, one.arguments) == (other.name, other.arguments)
