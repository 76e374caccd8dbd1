"""A record as a readable, coloured transcript."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from bough.data.base import Sample, common_prefix
from bough.ledger import plural
from bough.terminal.console import printable
from bough.types import Call, Group, Message, Pair, Turn

COLOURS = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


def show(console: Console, sample: Sample, title: str) -> None:
    """Prints one trajectory, pair or group."""
    console.print(Rule(Text(printable(title)), style="dim"))
    for line in _lines(sample):
        console.print(line)


def _lines(sample: Sample) -> Iterator[Text]:
    task = sample.task
    facts = [f"task {task.id}", task.environment or "", f"seed {task.seed}" if task.seed is not None else ""]
    yield Text(printable(" · ".join(filter(None, facts))), "dim")
    yield from map(_message, sample.attempts[0].start if isinstance(sample, Group) else sample.start)
    if isinstance(sample, Pair):
        yield Text("✓ chosen", "bold green")
        yield from _turns(sample.chosen)
        yield Text("✗ rejected", "bold red")
        yield from _turns(sample.rejected)
        facts = [f"reason {sample.reason}"] if sample.reason else []
        facts += [f"margin {sample.margin:g}"] if sample.margin is not None else []
        yield Text(printable(", ".join(facts)), "bold")
        return
    attempts = sample.attempts if isinstance(sample, Group) else [sample]
    for number, attempt in enumerate(attempts, 1):
        if isinstance(sample, Group):
            yield Text(f"attempt {number} of {len(attempts)}", "bold")
        yield from _turns(attempt.turns)
        outcomes = {True: ("success", "green"), False: ("failure", "red"), None: ("outcome unknown", "dim")}
        word, colour = outcomes[attempt.success]
        scores = {name: "not scored" if value is None else f"{value:g}" for name, value in attempt.rewards.items()}
        stop = [f"stopped: {attempt.stop}"] if attempt.stop else []
        facts = [word, *stop, *(f"{name} {score}" for name, score in scores.items())]
        yield Text(printable(" · ".join(facts)), f"bold {colour}")


def _turns(turns: list[Turn]) -> Iterator[Text]:
    for number, turn in enumerate(turns, 1):
        notes = [] if turn.trained else ["not trained"]
        if turn.prompt is not None:
            notes.append("a branch")
            yield from map(_message, turn.prompt[-1:])
        if turn.reward is not None:
            notes.append(f"reward {turn.reward:g}")
        if turn.call is not None:
            notes.append(f"{len(turn.call.prompt_ids)} + {len(turn.call.completion_ids)} tokens")
        if turn.correction is not None:
            notes.append("corrected below")
        yield _message(turn.reply, note=f" {number}" + (f" ({', '.join(notes)})" if notes else ""))
        if turn.correction is not None:
            yield _message(turn.correction, note=f" {number}, corrected")
        if turn.error:
            yield Text(printable(f"  error: {turn.error}"), "red")
        yield from map(_message, turn.observation)


def _message(message: Message, note: str = "") -> Text:
    line = Text(f"{message.role}{note}: ", f"bold {COLOURS[message.role]}")
    if message.reasoning:
        line.append(printable(f"({message.reasoning}) "), "dim italic")
    line.append(printable(message.content), "" if message.role == "assistant" else "dim")
    for call in message.tool_calls:
        arguments = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
        line.append(printable(f"\n  → {call.name}({arguments})"), "green")
    return line


# Tokens in colour: trained tokens are green between ⟦ ⟧, all others are context.

# Neighbouring tokens differ in shade to show their boundaries.
SHADES = ("bold green", "bold bright_green underline")


def coloured(calls: list[Call], tokenizer: Any) -> Iterator[Text]:
    """One text per call; the prefix shared with the call before is not repeated."""
    previous: list[int] = []
    for number, call in enumerate(calls, 1):
        shared = common_prefix(previous, call.prompt_ids)
        text = Text(f"call {number}: ", "bold")
        if shared:
            text.append(f"… {plural(shared, 'shared token')} … ", "dim italic")
        text.append(printable(tokenizer.decode(call.prompt_ids[shared:])), "dim")
        text.append("⟦", "green")
        for i, token in enumerate(call.completion_ids):
            text.append(printable(tokenizer.decode([token])), SHADES[i % 2])
        text.append("⟧", "green")
        yield text
        previous = call.prompt_ids + call.completion_ids
