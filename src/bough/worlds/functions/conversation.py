"""A multi-turn task: what the user says next, which calls were made, and which user turns passed their check."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from bough.types import Message, ToolCall
from bough.worlds.functions import back_ends, benchmark
from bough.worlds.functions.benchmark import Entry, tool_name, tools, written

# The benchmark gives up after this many replies with calls in one user turn.
MAX_STEPS = 20
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"


class Conversation:
    """The state of one task. The back ends' state is not in it: it follows from the calls."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        names = {name: list(function["parameters"]["properties"]) for name, function in self._functions.items()}
        self.gold = [[_call(text, names) for text in texts] for texts in entry.answer]  # of each user turn
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
    def tools(self) -> tuple[dict[str, Any], ...]:
        """The functions that are offered from the start."""
        held_back = {name for names in self._held_back.values() for name in names}
        offered = [function for name, function in self._functions.items() if name not in held_back]
        return tools(offered, self.entry.set)

    def user_turn(self) -> tuple[Message, ...]:
        """What the user says at the beginning of the current turn; perhaps that there are more functions now."""
        number = len(self.turns) - 1
        added = self._held_back.get(str(number))
        if added is None:
            said = self.entry.row["question"][number]
            return tuple(Message(role=one["role"], content=one["content"]) for one in said)
        shown = tools([self._functions[name] for name in added], self.entry.set)
        return (Message(role="user", content=f"{json.dumps(shown, ensure_ascii=False)}\n{MORE_FUNCTIONS}"),)

    async def call(self, calls: Sequence[ToolCall], timeout_s: float) -> list[str]:
        """Makes the calls of one reply; the results as text. A call that is stopped has no effect."""
        self.steps += 1
        done = [call for steps in self.turns for step in steps for call in step]
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
    def turn_gold(self) -> list[ToolCall]:
        """The gold calls of the current user turn."""
        return self.gold[len(self.turns) - 1]

    def next_gold(self) -> list[ToolCall]:
        """The gold calls of the turn that come next: one, or a few where more are missing than replies are left."""
        made = [(call.name, call.arguments) for step in self.turns[-1] for call in step]
        missing = []
        for call in self.turn_gold:
            if (call.name, call.arguments) in made:
                made.remove((call.name, call.arguments))
            else:
                missing.append(call)
        return missing[: ceil(len(missing) / max(1, MAX_STEPS - self.steps))]

    @property
    def _functions(self) -> dict[str, Mapping[str, Any]]:
        found = [one for name in self.entry.row["involved_classes"] for one in benchmark.documentation(name)]
        return {function["name"]: function for function in found}

    @property
    def _held_back(self) -> dict[str, list[str]]:
        """The functions that appear later, by the number of their turn."""
        held_back: dict[str, list[str]] = self.entry.row.get("missed_function", {})
        return held_back


# The benchmark's answers as tool calls: what its authors would have called.
# Multi-turn answers are Python calls with literal arguments, written as text. Single-turn answers list the accepted
# values of every argument; "" among them means that the argument may be left out.


def gold_calls(entry: Entry) -> list[ToolCall]:
    """Calls that the check of a single-turn task accepts."""
    functions = {function["name"]: function for function in entry.row["function"]}
    calls = []
    for name, accepted in [item for answer in entry.answer for item in answer.items()]:
        parameters = functions[name]["parameters"]
        chosen = {}  # the first accepted value of every argument that must be given
        for argument, values in accepted.items():
            if argument in parameters.get("required", []) or "" not in values:
                value = _value(next((value for value in values if value != ""), ""))
                if entry.set in benchmark.OTHER_LANGUAGES:
                    value = written(value, parameters["properties"][argument], entry.set)
                chosen[argument] = value
        calls.append(ToolCall(name=tool_name(name), arguments=chosen))
    return calls


def _call(text: str, names: Mapping[str, list[str]]) -> ToolCall:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), text
    positional = zip(names[call.func.id], call.args, strict=False)
    arguments = {name: ast.literal_eval(value) for name, value in positional}
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return ToolCall(name=call.func.id, arguments=arguments)


def _value(accepted: Any) -> Any:
    """An accepted value. The fields of a dictionary list their accepted values in turn."""
    if isinstance(accepted, list):
        return [_value(one) for one in accepted]
    if not isinstance(accepted, dict):
        return accepted
    fields = {key: values if isinstance(values, list) else [values] for key, values in accepted.items()}
    return {key: _value(values[0]) for key, values in fields.items() if values and "" not in values}
