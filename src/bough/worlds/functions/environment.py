"""Functions: a user asks for something, and the agent calls functions to do it.

A task of BFCL v4, played and judged as the benchmark does it. In a multi-turn task the
calls of a reply are made and their results shown; a reply without a call ends the user's
turn, is checked, and the user says the next thing. A single-turn task ends with the first
reply. The reward is the benchmark's score, 1 or 0, at the end of the episode.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from bough.chat import tool_calls
from bough.chat.tool_calls import MalformedError, ParsedReply, Reply
from bough.config.base import Config
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.errors import InputError
from bough.sandbox import isolation
from bough.sandbox.base import SandboxError
from bough.types import Message, Task
from bough.worlds.functions import back_ends, benchmark
from bough.worlds.functions.conversation import MAX_STEPS, Conversation, gold_calls

RULES = (
    "You help a user by calling functions. {how} If none of the functions can do what the user asks, or a value that "
    "a function requires is missing, say so instead of calling it."
)
MANY_TURNS = (
    "Call as many as the request needs; the results are shown to you, and you can call more. When you have done what "
    "was asked, reply without a call, and the user continues."
)
ONE_TURN = "Make all the calls that the request needs in one reply."
DONE, CANNOT = "Done.", "I cannot do that yet: a function or a value that it needs is missing."
NO_FUNCTION = "None of the functions can do that."
# Tenths of all families of tasks, by their hash. "all" is the whole benchmark.
SPLITS = {"train": range(8), "seen": range(8, 9), "unseen": range(9, 10), "all": range(10)}
MOST_USER_TURNS = 8
MAX_NAME = 80


class Functions(Environment):
    """BFCL v4: requests to be met by calling functions, in one turn or in several.

    Multi-turn tasks have eight back ends with state, such as a file system, a vehicle or a
    travel agency; success is the benchmark's check of their state and of the results.
    """

    name: ClassVar[str] = "functions"
    # As many as the benchmark allows; one reply with calls above the limit of a user turn ends the episode.
    max_turns: ClassVar[int] = MOST_USER_TURNS * (MAX_STEPS + 1)
    reward_range = (0.0, 1.0)
    shares_loop: ClassVar[bool] = True

    class Settings(Config):
        """How episodes end."""

        stop_at_failure: bool = Field(
            False, description="end the episode at the first user turn that fails its check, instead of playing on"
        )

    class Options(Settings):
        """Which tasks, and how episodes end."""

        sets: list[str] = Field(
            ["multi_turn"],
            min_length=1,
            description="the benchmark's sets, such as multi_turn_base or live_simple; multi_turn and single_turn "
            "name all of a kind",
        )

    settings: ClassVar[Settings] = Settings()

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.entry = benchmark.entry(task.id)
        self.conversation = Conversation(self.entry) if self.entry.multi_turn else None

    @classmethod
    def tasks(cls, options: Config, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        """The tasks of the sets in an order that the seed fixes; related tasks are in the same split."""
        assert isinstance(options, cls.Options)
        if split not in SPLITS:
            raise InputError(f"split is {split!r}; choose one of {', '.join(SPLITS)}")
        names = benchmark.sets_named(options.sets)
        found = [entry for name in names for entry in benchmark.entries(name).values()]
        random.Random(seed).shuffle(found)  # noqa: S311  no secret
        for entry in found:
            digest = hashlib.blake2b(entry.family.encode(), digest_size=8).digest()
            kept = split == "all" or entry.id not in benchmark.UNWINNABLE
            if kept and int.from_bytes(digest, "big") % 10 in SPLITS[split]:
                yield Task(id=entry.id, environment=cls.name, data={"set": entry.set, "family": entry.family})

    @classmethod
    def setup(cls) -> Iterator[str]:
        """Fetches the benchmark, for `bough env setup functions`."""
        folder = benchmark.local_folder()
        total = sum(len(benchmark.entries(name)) for name in benchmark.SETS)
        yield f"BFCL {benchmark.VERSION}: {total:,} tasks in {folder}."
        chosen = isolation.choose(unsafe=True)
        limits = "processes with limits, without isolation" if chosen == "none" else f"a sandbox of {chosen}"
        yield f"Functions run in {limits}."

    @classmethod
    async def shutdown(cls) -> None:
        await back_ends.close()

    async def start(self) -> Observation:
        if self.conversation is not None:
            rules, said, tools = MANY_TURNS, self.conversation.user_turn(), self.conversation.tools
        else:
            rules, tools = ONE_TURN, benchmark.tools(self.entry.row["function"], self.entry.set)
            said = tuple(Message(role=one["role"], content=one["content"]) for one in self.entry.row["question"][0])
        system = RULES.format(how=rules)
        if said[0].role == "system":
            system, said = f"{system}\n\n{said[0].content}", said[1:]
        return Observation(messages=(Message(role="system", content=system), *said), tools=tools)

    async def step(self, reply: str) -> Observation:
        try:
            said, error = Reply.of(reply).parsed, None
        except MalformedError:
            # As in the benchmark, a call that cannot be read is no call.
            said, error = ParsedReply(thought="", action=str(reply)), "malformed"
        try:
            if self.conversation is None:
                return await self._answer(said, error)
            if said.calls:
                return await self._call(self.conversation, said)
            verdict = await self.conversation.check(self._timeout_s)
        except SandboxError as problem:
            raise EnvironmentFailedError(str(problem)) from problem
        conversation, failed = self.conversation, self.conversation.failure is not None
        more: dict[str, Any] = {"action": said.action, "error": error, "info": {"check": verdict}}
        if len(conversation.turns) == len(conversation.gold) or (failed and self.settings.stop_at_failure):
            return _end(conversation.progress, success=not failed, **more)
        conversation.next_turn()
        return Observation(messages=conversation.user_turn(), progress=conversation.progress, **more)

    def say(self, action: str, thought: str = "") -> str:
        """`action` is calls in their tags, or a text."""
        return tool_calls.write(action, thought)

    async def expert(self) -> str | None:
        """Makes the benchmark's gold calls that are missing. There are none for live_relevance."""
        if self.conversation is not None:
            calls = self.conversation.next_gold()
            otherwise = DONE if self.conversation.turn_gold else CANNOT
        elif self.entry.id in benchmark.UNWINNABLE or self.entry.set == "live_relevance":
            return None
        else:
            calls, otherwise = gold_calls(self.entry), NO_FUNCTION
        return self.say("\n".join(map(tool_calls.call_text, calls)) or otherwise)

    @property
    def _timeout_s(self) -> float:
        """Well below the time limit of a step: a slow call is the agent's fault, not the environment's."""
        return self.step_timeout_s / 2

    async def _call(self, conversation: Conversation, said: ParsedReply) -> Observation:
        results = await conversation.call(said.calls, self._timeout_s)
        messages = tuple(
            Message(role="tool", content=text, name=call.name[:MAX_NAME], tool_call_id=call.id)
            for call, text in zip(said.calls, results, strict=True)
        )
        misused = any(text.startswith(back_ends.ERROR) for text in results)
        more: dict[str, Any] = {"action": said.action, "error": "tool_misuse" if misused else None}
        if conversation.steps > MAX_STEPS:
            return _end(conversation.progress, success=False, stop="step_limit", messages=messages, **more)
        return Observation(messages=messages, progress=conversation.progress, **more)

    async def _answer(self, said: ParsedReply, error: str | None) -> Observation:
        if self.entry.set in benchmark.RELEVANCE:
            verdict = "called" if said.calls else "not_called"
            success = bool(said.calls) == (self.entry.set == "live_relevance")
        else:
            verdict = await back_ends.check_calls(self.entry, said.calls, self._timeout_s)
            success = verdict == "valid"
        return _end(float(success), success=success, action=said.action, error=error, info={"check": verdict})


def _end(progress: float, *, success: bool, **more: Any) -> Observation:
    return Observation(terminated=True, success=success, reward=float(success), progress=progress, **more)
