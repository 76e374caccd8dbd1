"""The nouns: what a task, a call, a turn, a trajectory, a group and a pair are.

Everything that is trained on hangs from one shape: some messages to start from, then
turns. A turn is the agent's reply, the exact tokens of the call that made it (where
they are known) and the observation that came back. A trajectory is a start and its
turns; a pair is a start and two lists of turns that part there.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, Strict, model_validator

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "abort"]
# A log-probability of almost 0 may come out above it.
ROUNDING = 1e-3


def _not_negative(ids: list[int]) -> list[int]:
    # One look at the smallest is three times as fast as a bound on each.
    if min(ids, default=0) < 0:
        raise ValueError("token ids are not negative")
    return ids


# Checked where the list is read, not again whenever a record with the call in it is made.
TokenIds = Annotated[list[Annotated[int, Strict()]], AfterValidator(_not_negative)]


class Record(BaseModel):
    """A value that is written once and never changed.

    Empty lists and objects are given as factories: pydantic makes a deep copy of any other default for each record.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolCall(Record):
    """One use of a tool inside a reply."""

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    id: str | None = None


class Message(Record):
    """What one party said.

    `reasoning` is thinking that the chat template places by itself. `hint` follows the
    content, but only while the message is the newest: a list of admissible commands is
    of no use later, and is not carried along.
    """

    role: Role
    content: str = ""
    hint: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def empty(self) -> bool:
        return not (self.content.strip() or self.tool_calls)


class Task(Record):
    """What fixes an initial state: the same task gives the same start in any process."""

    id: str
    environment: str | None = None
    seed: int | None = None
    data: dict[str, JsonValue] = Field(default_factory=dict)


class Call(Record):
    """One use of the model: the exact tokens it was shown and the exact tokens it answered.

    `logprobs` are the sampled log-probabilities of `completion_ids`, None where the
    tokens were not sampled by us (demonstrations). They are those of the logits divided by
    `logprobs_temperature`, before top-p, top-k and min-p. `temperature` is what the tokens
    were sampled at (0: greedy), None where that is not known.
    """

    prompt_ids: TokenIds
    completion_ids: TokenIds
    logprobs: list[FiniteFloat] | None = None
    logprobs_temperature: FiniteFloat = 1.0
    temperature: FiniteFloat | None = None
    text: str = ""
    finish: Finish | None = None
    policy: str | None = None

    @model_validator(mode="after")
    def _each_token_has_its_logprob(self) -> Self:
        if self.logprobs is not None and len(self.logprobs) != len(self.completion_ids):
            raise ValueError(f"{len(self.logprobs)} log-probabilities for {len(self.completion_ids)} completion tokens")
        if (highest := max(self.logprobs or [0.0])) > ROUNDING:
            raise ValueError(f"a log-probability is {highest}; it must be at most 0")
        return self


class Turn(Record):
    """The agent's reply and its consequences.

    `progress` is how much of the task was done then, 0 to 1. `error` is a short word for
    a reply that could not be acted on. `trained` is False for replies given as context.
    `state` is the environment's own name of the state that the reply was given in; None if it
    does not name its states.
    `correction` is what should have been replied instead: SFT trains on it, and the reply
    that was given stays what later turns follow.

    `prompt` is set where the reply answers other messages than the conversation so far, as a
    sub-agent or an agent with a rewritten history does; `tools` are those it was offered, where
    they are not the trajectory's. Such a turn is not part of the conversation.
    """

    reply: Message
    correction: Message | None = None
    call: Call | None = None
    action: str | None = None
    observation: list[Message] = Field(default_factory=list)
    reward: FiniteFloat | None = None
    progress: FiniteFloat | None = None
    error: str | None = None
    state: str | None = None
    trained: bool = True
    prompt: list[Message] | None = None
    tools: list[dict[str, JsonValue]] | None = None

    @model_validator(mode="after")
    def _the_agent_replies_and_the_world_observes(self) -> Self:
        if self.reply.role != "assistant":
            raise ValueError(f"a turn's reply is the assistant's, not the {self.reply.role}'s")
        if self.correction is not None and self.correction.role != "assistant":
            raise ValueError(f"a turn's correction is the assistant's, not the {self.correction.role}'s")
        for message in self.observation:
            if message.role == "assistant":
                raise ValueError("an observation holds no assistant message; that would be the next turn's reply")
        return self


class Trajectory(Record):
    """One episode as it happened. A reward of None was not scored; success None is unknown."""

    id: str
    task: Task
    start: list[Message] = Field(min_length=1)
    turns: list[Turn]
    tools: list[dict[str, JsonValue]] = Field(default_factory=list)
    rewards: dict[str, FiniteFloat | None] = Field(default_factory=dict)
    success: bool | None = None
    stop: str | None = None
    info: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, start to end."""
        return conversation(self.start, self.turns)


class Group(Record):
    """Attempts at one task, to be compared with each other."""

    task: Task
    attempts: list[Trajectory] = Field(min_length=1)
    info: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_task(self) -> Self:
        if other := {attempt.task.id for attempt in self.attempts} - {self.task.id}:
            raise ValueError(f"the attempts of a group are at one task, {self.task.id!r}, not at {min(other)!r}")
        return self


class Pair(Record):
    """Two ways on from the same start, and why one is better. `margin` is by how much reward."""

    task: Task
    start: list[Message] = Field(min_length=1)
    chosen: list[Turn] = Field(min_length=1)
    rejected: list[Turn] = Field(min_length=1)
    tools: list[dict[str, JsonValue]] = Field(default_factory=list)
    reason: str | None = None
    margin: FiniteFloat | None = None
    info: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _two_different_ways(self) -> Self:
        if [turn.reply for turn in self.chosen] == [turn.reply for turn in self.rejected]:
            raise ValueError('"rejected" equals "chosen"; a preference pair needs two different replies')
        return self


def conversation(start: list[Message], turns: list[Turn]) -> list[Message]:
    """The messages of `start` followed by those of `turns`, without the turns that have a prompt of their own."""
    spoken = ([turn.reply, *turn.observation] for turn in turns if turn.prompt is None)
    return [*start, *chain.from_iterable(spoken)]


def split_conversation(messages: list[Message]) -> tuple[list[Message], list[Turn]]:
    """The inverse: what stands before the first reply, then a turn for each reply with what followed it."""
    replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
    if not replies:
        return messages, []
    ends = [*replies[1:], len(messages)]
    turns = [Turn(reply=messages[i], observation=messages[i + 1 : end]) for i, end in zip(replies, ends, strict=True)]
    return messages[: replies[0]], turns
