"""The rules that an agent reads before it sees a page: the actions, and how to write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import ModuleType

from bough.speech import commands
from bough.types import ToolCall
from bough.worlds.web.actions import SIGNATURES, Parameter, Signature
from bough.worlds.web.elements import Line


def text(speech: ModuleType, actions: Collection[str] = ()) -> str:
    """The rules for a form of speech, with `actions` only, where some are named."""
    as_commands = speech is commands
    shown = "with their selectors" if as_commands else "with a number each"
    offered = [signature for name, signature in SIGNATURES.items() if not actions or name in actions]
    lines = "\n".join(f"{_usage(signature, as_commands)} - {signature.about}" for signature in offered)
    return (
        f"You use a web page to reach a goal. You see its elements {shown}, and act once each turn.\n\n"
        f"Actions:\n{lines}\n\n{speech.PROMPT}"
    )


def as_command(call: ToolCall, lines: Iterable[Line]) -> str:
    """A call on numbered elements, as a command on selectors."""
    selectors = {line.number: line.selector for line in lines if line.number}
    signature = SIGNATURES[call.name]
    arguments = {}
    for key, value in call.arguments.items():
        parameter = signature.parameters[int(key)] if key.isdecimal() else _named(signature, key)
        if parameter.kind == "element":
            value = selectors[int(str(value))]
        arguments[_command_name(parameter)] = value
    return commands.spell(ToolCall(name=call.name, arguments=arguments))


def _usage(signature: Signature, as_commands: bool) -> str:
    if not as_commands:
        example = {"element": "'3'", "text": "'text'", "options": "'option'", "key": "'Enter'", "direction": "'down'"}
        words = [example.get(p.kind, p.name) for p in signature.parameters if not p.optional]
        return f"{signature.name}({', '.join(words)})"
    words = [f'{_command_name(p)}="…"' for p in signature.parameters if not p.optional]
    return f"{signature.name.upper()}({', '.join(words)})"


def _command_name(parameter: Parameter) -> str:
    return "selector" if parameter.name == "element" else parameter.name


def _named(signature: Signature, name: str) -> Parameter:
    return next(parameter for parameter in signature.parameters if parameter.name == name)
