"""Tools on a server: what they are is known only once it was asked, and whatever it fails at is its own failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bough.environments.base import EnvironmentFailedError, Observation
from bough.environments.tool_calls import ToolCallEnvironment
from bough.errors import short_repr
from bough.speech import functions, hermes
from bough.types import ToolCall


class RemoteToolEnvironment(ToolCallEnvironment):
    """Its `tools` are those that `offer` was called with."""

    def offer(self, tools: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """Sets the tools: the name, the description and the JSON schema of the parameters of each."""
        offered: dict[str, dict[str, Any]] = {}
        for name, description, parameters in tools:
            kinds = isinstance(name, str), isinstance(description, str), isinstance(parameters, dict)
            if not all(kinds) or not name or name in offered:
                raise EnvironmentFailedError(
                    f"the server offers the tool {short_repr(name)}; each needs a name of its own, "
                    "a description that is text, and a JSON schema of its parameters"
                )
            offered[name] = {"name": name, "description": description, "parameters": parameters}
        self.tools = tuple({"type": "function", "function": function} for function in offered.values())

    @property
    def tool_names(self) -> Sequence[str]:
        return [tool["function"]["name"] for tool in self.tools]

    def _too_slow(self, call: ToolCall, limit_s: float) -> Exception:
        return EnvironmentFailedError(f"the server took longer than {limit_s:.3g} s to answer {call.name}")

    def timed_out(self) -> Observation | None:
        return None

    def say(self, action: str, thought: str = "") -> str:
        """`action` may be written as in Python, `price("apple")`; anything else is an answer."""
        call = functions.read_call(action)
        if call is None or call.name not in self.tool_names:
            return hermes.write(action, thought)
        [schema] = [one["function"]["parameters"] for one in self.tools if one["function"]["name"] == call.name]
        names = dict(enumerate(schema.get("properties", {})))
        arguments = {
            names.get(int(key), key) if key.isdecimal() else key: value for key, value in call.arguments.items()
        }
        return hermes.write(hermes.call_text(ToolCall(name=call.name, arguments=arguments)), thought)
