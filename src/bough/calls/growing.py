"""The prompts of an episode, each rendered from the one before: only what is new is written.

For a local template (`bough.calls.locality`) the text that follows the last old message depends
on the latest two turns and not on their contents, which are copied. So the template renders
two short conversations with placeholders as contents, once per kind of turn. The difference
between the two is a rule, and the next prompt of that kind takes no rendering at all: the old
text, then the rule with the new contents filled in. Every text equals
`ChatTemplate.prompt`; where that is not known, `ChatTemplate.prompt` renders it.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bough.calls.locality import locality
from bough.calls.template import ChatTemplate
from bough.errors import RowError
from bough.types import Message

log = logging.getLogger(__name__)
# Around a placeholder: if a template trims a content, these spaces are gone.
SPACE = "\N{EM SPACE}"
# A secret, so that no text of an environment is taken for a placeholder.
NAME = f"placeholder{secrets.token_hex(8)}n"
PLACEHOLDER = re.compile(f"({SPACE}?){NAME}([0-9]+)e({SPACE}?)")
MAX_RULES = 32
# Prompts that are compared with the whole rendering, for each template.
NUM_CHECKS = 2


@dataclass(frozen=True)
class Hole:
    """Where the content of message `number` is copied to, with or without the white space at its ends."""

    number: int
    keeps_start: bool
    keeps_end: bool

    def shows(self, content: str) -> str:
        content = content if self.keeps_start else content.lstrip()
        return content if self.keeps_end else content.rstrip()


@dataclass(frozen=True)
class Rule:
    """How a prompt continues: the newest content and `tail` at its end become that content and `parts`."""

    newest: Hole
    tail: str
    parts: list[str | Hole]


class Prompts:
    """The prompts of a chat template. A template whose prompts must be rendered whole is named in the log, once."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        source = template.source
        self.locality = locality(source) if source is not None and SPACE not in source else None
        self._unchecked = NUM_CHECKS
        self._told = False

    def begin(self) -> GrowingPrompt:
        """The prompts of one conversation."""
        return GrowingPrompt(self)

    def whole(self, messages: list[Message], tools: list[dict[str, Any]]) -> str:
        return self.template.prompt(messages, tools)

    def tell(self) -> None:
        """Says that there is no short way."""
        if not self._told:
            self._told = True
            log.info(
                "%s: the chat template may rewrite earlier messages, so each turn renders the whole conversation",
                self.template.name,
            )

    def checked(self, text: str, messages: list[Message], tools: list[dict[str, Any]]) -> str:
        """The text; the first ones are compared with the whole rendering, in case the proof has a gap."""
        if not self._unchecked:
            return text
        self._unchecked -= 1
        whole = self.whole(messages, tools)
        if whole != text:
            self.locality = None
        return whole


class GrowingPrompt:
    """The prompts of one conversation, in the order in which it grows. Any other order is right, but slower."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._messages: list[Message] = []
        self._tools: list[dict[str, Any]] = []
        self._text = ""
        self._alternates = False
        self._rules: dict[tuple[Any, ...], Rule | None] = {}

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]]) -> str:
        """The text that the model answers to, as `ChatTemplate.prompt` gives it."""
        known = len(self._messages)
        grows = 0 < known < len(messages) and messages[:known] == self._messages and tools == self._tools
        if not grows:
            self._rules.clear()
            self._alternates = all(message.role != "assistant" for message in messages)
            text = None
        else:
            added = messages[known:]
            self._alternates = self._alternates and [message.role == "assistant" for message in added] == [True, False]
            text = self._continued(messages, known)
        if text is None:
            text = self._prompts.whole(messages, tools)
        self._messages, self._tools, self._text = list(messages), list(tools), text
        return text

    def _continued(self, messages: list[Message], known: int) -> str | None:
        """The text after that of the first `known` messages; None where the template must render it."""
        local = self._prompts.locality
        if local is None:
            self._prompts.tell()
            return None
        first = next(_replies(range(known), messages), 0)
        last = next(_replies(range(known - 1, 0, -1), messages), 0)
        turns = messages[last:]
        if not 0 < first <= last < known - 1 or turns[known - last].role != "assistant":
            return None  # not two whole turns after a start
        if any(message.tool_calls or message.reasoning is not None for message in turns):
            return None
        if local.parity and not self._alternates:
            return None
        newest, count = turns[known - last - 1], known - last
        contents = [message.content for message in turns]
        contents[-1] += turns[-1].hint or ""
        shown = newest.content + (newest.hint or "")
        if bool(shown) != bool(newest.content):
            return None
        rule = self._rule(messages[:first], turns, contents, count)
        if rule is None:
            return None
        text = self._apply(rule, turns, contents, shown, count)
        # Without older turns the rule comes from the whole conversation, and a comparison would say nothing.
        return self._prompts.checked(text, messages, self._tools) if text is not None and first < last else text

    def _apply(self, rule: Rule, turns: list[Message], contents: list[str], shown: str, count: int) -> str | None:
        escape = self._prompts.template.control.escape
        newest = turns[count - 1]
        end = rule.newest.shows(escape(shown)) + rule.tail
        if not self._text.endswith(end):
            return None
        written = [self._text[: len(self._text) - len(end)], rule.newest.shows(escape(newest.content))]
        for part in rule.parts:
            if isinstance(part, Hole):
                reply = turns[part.number].role == "assistant"
                written.append(part.shows(escape(contents[part.number], reply=reply)))
            else:
                written.append(part)
        return "".join(written)

    def _rule(self, start: list[Message], turns: list[Message], contents: list[str], count: int) -> Rule | None:
        """The rule for turns of this kind, of which the first `count` messages were in the prompt before."""
        kinds = zip(turns, contents, strict=True)
        key = (count, *((one.role, one.name, one.tool_call_id, bool(content)) for one, content in kinds))
        if key not in self._rules:
            if len(self._rules) >= MAX_RULES:
                self._rules.clear()
            self._rules[key] = self._derived(start, turns, contents, count)
        return self._rules[key]

    def _derived(self, start: list[Message], turns: list[Message], contents: list[str], count: int) -> Rule | None:
        marked = [
            message.model_copy(update={"content": content and f"{SPACE}{NAME}{i}e{SPACE}", "hint": None})
            for i, (message, content) in enumerate(zip(turns, contents, strict=True))
        ]
        try:
            before = self._prompts.whole([*start, *marked[:count]], self._tools)
            after = self._prompts.whole([*start, *marked], self._tools)
        except RowError:
            return None
        old, new = list(PLACEHOLDER.finditer(before)), list(PLACEHOLDER.finditer(after))
        at = [i for i, match in enumerate(new) if match[2] == str(count - 1)]
        if not old or len(at) != 1 or [match[0] for match in old] != [match[0] for match in new[: at[0] + 1]]:
            return None
        here, there = old[-1], new[at[0]]
        later = new[at[0] + 1 :]
        if before[: here.end()] != after[: there.end()] or any(int(match[2]) < count for match in later):
            return None
        parts: list[str | Hole] = []
        begin = there.end()
        for match in later:
            parts += [after[begin : match.start()], _hole(match)]
            begin = match.end()
        return Rule(_hole(here), before[here.end() :], [*parts, after[begin:]])


def _hole(match: re.Match[str]) -> Hole:
    return Hole(int(match[2]), bool(match[1]), bool(match[3]))


def _replies(order: range, messages: list[Message]) -> Iterator[int]:
    return (i for i in order if messages[i].role == "assistant")
