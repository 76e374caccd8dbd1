"""The benchmark's answers as tool calls: what its authors would have called.

Multi-turn answers are Python calls with literal arguments, written as text. Single-turn
answers list the accepted values of every argument; "" among them means that the argument
may be left out.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from bough.types import ToolCall
from bough.worlds.functions import benchmark
from bough.worlds.functions.benchmark import Entry
from bough.worlds.functions.foreign import written
from bough.worlds.functions.schemas import tool_name


def gold_turns(entry: Entry) -> list[list[ToolCall]]:
    """The gold calls of each user turn."""
    names = {
        function["name"]: list(function["parameters"]["properties"])
        for back_end in entry.row["involved_classes"]
        for function in benchmark.documentation(back_end)
    }
    return [[_call(text, names) for text in texts] for texts in entry.answer]


def gold_calls(entry: Entry) -> list[ToolCall]:
    """Calls that the check of a single-turn task accepts."""
    functions = {function["name"]: function for function in entry.row["function"]}
    return [
        ToolCall(name=tool_name(name), arguments=_chosen(accepted, functions[name], entry.set))
        for answer in entry.answer
        for name, accepted in answer.items()
    ]


def _call(text: str, names: Mapping[str, list[str]]) -> ToolCall:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), text
    positional = zip(names[call.func.id], call.args, strict=False)
    arguments = {name: ast.literal_eval(value) for name, value in positional}
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return ToolCall(name=call.func.id, arguments=arguments)


def _chosen(accepted: Mapping[str, list[Any]], function: Mapping[str, Any], set_name: str) -> dict[str, Any]:
    """The first accepted value of every argument that must be given."""
    parameters = function["parameters"]
    required = parameters.get("required", [])
    chosen = {}
    for name, values in accepted.items():
        given = [value for value in values if value != ""]
        if name in required or "" not in values:
            value = _value(given[0] if given else "")
            if set_name in benchmark.OTHER_LANGUAGES:
                value = written(value, parameters["properties"][name], set_name)
            chosen[name] = value
    return chosen


def _value(accepted: Any) -> Any:
    """An accepted value. The fields of a dictionary list their accepted values in turn."""
    if isinstance(accepted, list):
        return [_value(one) for one in accepted]
    if not isinstance(accepted, dict):
        return accepted
    fields = {key: values if isinstance(values, list) else [values] for key, values in accepted.items()}
    return {key: _value(values[0]) for key, values in fields.items() if values and "" not in values}
