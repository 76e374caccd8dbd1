"""Turns that are not part of the conversation: where each leaves it.

An agent of its own (`bough serve`, `--agent`) may ask twice with one prompt, go on from an
earlier reply in another way, rewrite its history, or have a sub-agent. Each such turn has a prompt
of its own; what it shares with earlier turns says which of these it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bough.digest import text_digest
from bough.types import Message, Trajectory

Kind = Literal["same_prompt", "branch", "rewritten_history", "sub_agent"]


@dataclass(frozen=True)
class Branch:
    """`turn` is the index of the turn that it shares most with, if any; `num_shared` counts the prompt's messages
    that are shown there already.
    """

    kind: Kind
    turn: int | None = None
    num_shared: int = 0


def branches(record: Trajectory) -> list[Branch | None]:
    """For each turn of a trajectory how it leaves the conversation; None for those that are part of it."""
    start = _digests(record.start)
    opening = next((_key(message) for message in record.start if message.role != "system"), None)
    asked: dict[str, int] = {}
    replied: dict[str, int] = {}
    conversation = start[-1]
    found: list[Branch | None] = []
    for number, turn in enumerate(record.turns):
        prompt = [conversation] if turn.prompt is None else _digests(turn.prompt)
        if turn.prompt is None:
            found.append(None)
        else:
            found.append(_branch(turn.prompt, prompt, start, asked, replied, opening))
        asked.setdefault(prompt[-1], number)
        after = _extended(prompt[-1], turn.reply)
        replied.setdefault(after, number)
        if turn.prompt is None:
            conversation = after
            for message in turn.observation:
                conversation = _extended(conversation, message)
    return found


def _branch(
    messages: Sequence[Message],
    prompt: list[str],
    start: list[str],
    asked: dict[str, int],
    replied: dict[str, int],
    opening: str | None,
) -> Branch:
    if (same := asked.get(prompt[-1])) is not None:
        return Branch("same_prompt", same, len(messages))
    for place in range(len(prompt) - 1, 0, -1):
        if (turn := replied.get(prompt[place])) is not None:
            return Branch("branch", turn, place)
    first = next((_key(message) for message in messages if message.role != "system"), None)
    if first is not None and first == opening and len(messages) > 1:
        shared = sum(mine == theirs for mine, theirs in zip(prompt[1:], start[1:], strict=False))
        return Branch("rewritten_history", num_shared=shared)
    return Branch("sub_agent")


def _digests(messages: Sequence[Message]) -> list[str]:
    """The digests of the beginnings of a conversation: of no message, of the first, of the first two, …"""
    found = [""]
    for message in messages:
        found.append(_extended(found[-1], message))
    return found


def _extended(conversation: str, message: Message) -> str:
    return text_digest(f"{conversation} {_key(message)}", size=16)


def _key(message: Message) -> str:
    return message.model_dump_json(exclude={"hint"}, exclude_defaults=True)
