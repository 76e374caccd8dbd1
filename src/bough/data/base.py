"""What a file format is, and the functions that every reader of rows needs.

A format turns one row (a JSON object) into one record and, where it can be written,
back. A row that cannot be read raises `RowError`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, time
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from bough.errors import RowError
from bough.files import text_digest
from bough.types import Group, Message, Pair, Role, Task, ToolCall, Trajectory, Turn, conversation, split_conversation

# The name of data that is given in Python, where settings and records name a file.
IN_MEMORY = "records"

Row = dict[str, Any]
Sample = Trajectory | Pair | Group
Read = TypeVar("Read", bound=Sample)


@dataclass(frozen=True)
class Format:
    """One file format: how to recognise, read and (if `write` is given) write it."""

    name: str
    about: str
    matches: Callable[[Row], bool]
    read: Callable[[Row], Sample]
    write: Callable[[Sample], Row] | None = None


def reader(read: Callable[[Row], Read]) -> Callable[[Row], Read]:
    """`read`, with every error about a row turned into a RowError."""

    @functools.wraps(read)
    def guarded(row: Row) -> Read:
        try:
            return read(row)
        except ValidationError as error:
            raise row_error(error) from None
        except UnicodeEncodeError:
            raise RowError("not_utf8", "a text contains a lone surrogate (half a character)") from None
        except RecursionError:
            raise RowError("wrong_type", "the row is nested too deeply") from None

    return guarded


def field(row: Row, key: str, kind: type | tuple[type, ...], where: str = "") -> Any:
    """`row[key]`, which must be present, not null, and of `kind`."""
    value = optional(row, key, kind, where)
    if value is None:
        raise RowError("missing_field", f'{where}"{key}" is missing')
    return value


def optional(row: Row, key: str, kind: type | tuple[type, ...], where: str = "") -> Any:
    """`row[key]`, which must be of `kind`, or None if it is absent or null."""
    value = row.get(key)
    return None if value is None else typed(value, kind, f'{where}"{key}"')


def typed(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """`value`, which must be of `kind` (a bool is not a number) and, if it is text, valid Unicode."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(JSON_NAMES[k] for k in kinds if k is not int or float not in kinds)
        found = JSON_NAMES.get(type(value), type(value).__name__)
        raise RowError("wrong_type", f"{what} is {found}; it must be {names}")
    return jsonable(value) if isinstance(value, str) else value


def number(row: Row, key: str, where: str = "") -> float | None:
    """`row[key]` as a finite float, None if it is absent."""
    return None if row.get(key) is None else finite(row[key], f'{where}"{key}"')


def finite(value: Any, what: str) -> float:
    """`value`, which must be a number, as a finite float."""
    try:
        converted = float(typed(value, (int, float), what))
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise RowError("not_finite", f"{what} is {converted}; it must be a finite number")
    return converted


def rest(row: Row, *known: str) -> dict[str, Any]:
    """The columns a format gives no meaning to: kept in `info`, so nothing is lost."""
    columns = jsonable({key: value for key, value in row.items() if key not in known})
    return {key: value for key, value in columns.items() if value is not None}


def jsonable(value: Any) -> Any:
    """`value` as JSON can express it: NaN (a missing number in a table) as null, a date as text.

    Half a character (a lone surrogate, which JSON's escapes allow) raises UnicodeEncodeError.
    """
    if isinstance(value, dict):
        return {jsonable(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, str):
        value.encode()
    return value


ORDER = "system may only be first, assistant must follow user or tool, tool must follow a tool call"


def split_turns(
    messages: list[Message], *, begin: int | None = None, trained: Iterable[bool] | None = None
) -> tuple[list[Message], list[Turn]]:
    """A conversation as start and turns, its roles checked.

    The start is what stands before message `begin` (default: the first assistant
    message); from there on every assistant message opens a turn and what follows it, up
    to the next one, is its observation. `trained` says for each turn whether it is
    trained (default: all are).
    """
    for i, message in enumerate(messages):
        # A system message only first, an assistant only after user or tool, a tool only after a tool call.
        before = messages[i - 1] if i else None
        follows = {
            "system": before is None,
            "user": True,
            "assistant": before is not None and before.role in ("user", "tool"),
            "tool": before is not None and (before.role == "tool" or bool(before.tool_calls)),
        }
        if not follows[message.role]:
            place = f"message {i} ({message.role}) is after {before.role if before else 'nothing'}"
            raise RowError("unbalanced_roles", f"{place}; {ORDER}")
    if begin is None:
        begin = next((i for i, message in enumerate(messages) if message.role == "assistant"), len(messages))
    unanswered, turns = split_conversation(messages[begin:])
    if not turns:
        raise RowError("unbalanced_roles", "no assistant message: there is nothing to train")
    if unanswered:
        raise RowError("unbalanced_roles", f"message {begin} is a {unanswered[0].role} message; it must be a reply")
    flags = [True] * len(turns) if trained is None else list(trained)
    replies = [i for i, message in enumerate(messages) if message.role == "assistant" and i >= begin]
    for i, turn, flag in zip(replies, turns, flags, strict=True):
        if flag and turn.reply.empty:
            raise RowError("empty_completion", f"message {i} (assistant) is empty")
    return messages[:begin], [t.model_copy(update={"trained": flag}) for t, flag in zip(turns, flags, strict=True)]


def digest(*messages: Message) -> str:
    """A short name for these messages; equal messages have equal names on any machine."""
    return text_digest("".join(f"{message.model_dump_json(exclude_defaults=True)}\n" for message in messages), size=8)


JSON_NAMES: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def row_error(error: ValidationError) -> RowError:
    """The errors of pydantic in one sentence, with the reason of the first."""
    findings, sentences = error.errors(include_url=False, include_context=False, include_input=False), []
    for finding in findings[:3]:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in finding["loc"]).lstrip(".")
        place = f'"{path if len(path) <= 80 else path[:79] + "…"}": ' if path else ""
        sentences.append(place + finding["msg"].removeprefix("Value error, "))
    reason = {"missing": "missing_field", "finite_number": "not_finite"}.get(findings[0]["type"], "wrong_type")
    if '"rejected" equals "chosen"' in findings[0]["msg"]:
        reason = "same_reply"
    return RowError(reason, "; ".join(sentences))


# The fields of a record besides its messages, as columns with the same names in every format.
# `id` names an episode; `task_id`, `environment`, `seed` and `task_data` say of which task; `reward` is the reward of
# that name and `rewards` holds the others; `success` and `stop` say how it ended; `reason` and `margin` why a pair's
# chosen side is better. Any other column is kept in `info` and comes back from there as a column.

TASK = ("task_id", "environment", "seed", "task_data")
ENDING = ("reward", "rewards", "success", "stop")


def read_task(row: Row, start: list[Message], unnamed: str | None = None) -> Task:
    """The task of a row. If it has no name and no `unnamed` is given, rows with the same start have the same task."""
    return Task(
        id=name(row, "task_id") or unnamed or digest(*start),
        environment=optional(row, "environment", str),
        seed=optional(row, "seed", int),
        data=jsonable(optional(row, "task_data", dict) or {}),
    )


def read_trajectory(row: Row, start: list[Message], turns: list[Turn], *own: str, **more: Any) -> Trajectory:
    """The trajectory of a row; the format itself reads the columns `own`."""
    return Trajectory(
        id=name(row, "id") or digest(*conversation(start, turns)),
        task=read_task(row, start, unnamed=name(row, "id")),
        start=start,
        turns=turns,
        **read_ending(row),
        **more,
        info=rest(row, *own, "id", *TASK, *ENDING),
    )


def read_ending(row: Row, where: str = "") -> Row:
    """How an episode ended: rewards, success and what stopped it."""
    others = optional(row, "rewards", dict, where) or {}
    rewards = {jsonable(key): number(others, key, f'{where}"rewards" ') for key in others}
    reward = number(row, "reward", where)
    if reward is not None and rewards.get("reward", reward) != reward:
        raise RowError("wrong_type", f'{where}"reward" is {reward} and in "rewards" it is {rewards["reward"]}')
    return {
        "rewards": rewards if reward is None else {"reward": reward, **rewards},
        "success": optional(row, "success", bool, where),
        "stop": optional(row, "stop", str, where),
    }


def read_pair(
    row: Row,
    start: list[Message],
    chosen: list[Turn],
    rejected: list[Turn],
    *own: str,
    unnamed: str | None = None,
    margin: str = "margin",
    **more: Any,
) -> Pair:
    """The pair of a row; the format itself reads the columns `own`."""
    return Pair(
        task=read_task(row, start, unnamed),
        start=start,
        chosen=chosen,
        rejected=rejected,
        reason=optional(row, "reason", str),
        margin=number(row, margin),
        **more,
        info=rest(row, *own, "reason", margin, *TASK),
    )


def name(row: Row, key: str, where: str = "") -> str | None:
    """`row[key]` as a name: text, or a whole number as text; None if there is none."""
    value = optional(row, key, (str, int), where)
    try:
        return None if value is None or value == "" else str(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        raise RowError("wrong_type", f'{where}"{key}" is a number too long for a name') from None


def write_columns(record: Trajectory | Pair, task: Task | None = None) -> Row:
    """The columns that `read_trajectory` and `read_pair` read, and the record's `info`."""
    columns = write_task(task or record.task)
    if isinstance(record, Pair):
        return {**columns, **given(reason=record.reason, margin=record.margin), **record.info}
    # An id that a reader would generate is left out.
    name = {} if record.id == digest(*record.messages) else {"id": record.id}
    return {**columns, **name, **write_ending(record), **record.info}


def write_task(task: Task) -> Row:
    """The columns that `read_task` reads."""
    return given(task_id=task.id, environment=task.environment, seed=task.seed, task_data=task.data)


def write_ending(trajectory: Trajectory) -> Row:
    """The columns that `read_ending` reads."""
    rewards = dict(trajectory.rewards)
    reward = rewards.pop("reward") if rewards.get("reward") is not None else None
    return given(reward=reward, rewards=rewards, success=trajectory.success, stop=trajectory.stop)


def given(**columns: Any) -> Row:
    """The columns that are neither null nor empty."""
    return {key: value for key, value in columns.items() if value is not None and value not in ({}, [])}


# Lossless writing: a row is written only if reading it gives the same record.
# Every other format is smaller than ours. Rather than list what each has no place for, a writer puts down what it can
# and lets its own reader judge. Two things may be lost, and only these: the exact tokens of calls, and nulls among
# `info`. Formats that other programs read strictly have the conversation alone; for them `said` is compared.

Kind = TypeVar("Kind", bound=Sample)
# A message, and whether it is trained (only replies are).
Spoken = tuple[Message, bool]
_CALLS = {"__all__": {"call"}}
_TURNS = {"turns": _CALLS, "chosen": _CALLS, "rejected": _CALLS}
_LOST: Any = {**_TURNS, "attempts": {"__all__": _TURNS}}


def expect(record: Sample, kind: type[Kind], name: str) -> Kind:
    """`record`, which must be of the kind that the format `name` can express."""
    if not isinstance(record, kind):
        raise RowError("cannot_express", f"{name} cannot express a {type(record).__name__.lower()}")
    return record


def not_group(record: Sample, name: str) -> Trajectory | Pair:
    """`record`, for a format that has a row for everything else."""
    if isinstance(record, Group):
        raise RowError("cannot_express", f"{name} cannot express a group; write its attempts as separate rows")
    return record


def everything(record: Sample) -> Row:
    """What a faithful row keeps of a record."""
    dump = record.model_dump(exclude=_LOST)
    for part in (dump, *dump.get("attempts", ())):
        part["info"] = {key: value for key, value in part["info"].items() if value is not None}
    return dump


def faithful(
    name: str, record: Sample, row: Row, read: Callable[[Row], Read], kept: Callable[[Any], Row] = everything
) -> Row:
    """`row`, if `read` finds what is `kept` of `record` in it; otherwise RowError says what would be lost."""
    try:
        again = read(row)
    except RowError as error:
        raise RowError("cannot_express", f"{name} cannot express this record: {error}") from None
    place = _difference(kept(record), kept(again))
    if place is not None:
        raise RowError("cannot_express", f"{name} cannot express {place} of this record")
    return row


def said(record: Trajectory | Pair) -> Row:
    """The messages of a record, which replies are trained, and the tools. Ids of tool calls may differ."""
    if isinstance(record, Pair):
        parts = {"start": context(record.start), "chosen": spoken(record.chosen), "rejected": spoken(record.rejected)}
    else:
        parts = {"messages": context(record.start) + spoken(record.turns)}
    ids: Any = {"tool_call_id": True, "tool_calls": {"__all__": {"id"}}}
    dumped = {
        name: [message.model_dump(exclude=ids) | {"trained": trained} for message, trained in part]
        for name, part in parts.items()
    }
    return {**dumped, "tools": record.tools}


def context(messages: list[Message]) -> list[Spoken]:
    """Messages that are not trained."""
    return [(message, False) for message in messages]


def spoken(turns: list[Turn]) -> list[Spoken]:
    """The messages of turns."""
    return [one for turn in turns for one in [(turn.reply, turn.trained), *context(turn.observation)]]


def _difference(wanted: Any, got: Any, place: str = "") -> str | None:
    """The path of the first difference."""
    if wanted == got:
        return None
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(wanted, dict) and isinstance(got, dict):
        parts = [(f"{place}.{key}".lstrip("."), wanted.get(key), got.get(key)) for key in {**wanted, **got}]
    elif isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        parts = [(f"{place}[{i}]", left, right) for i, (left, right) in enumerate(zip(wanted, got, strict=True))]
    return next((found for path, left, right in parts if (found := _difference(left, right, path))), place)


# Chat messages as JSON: OpenAI's shape, which TRL and chat templates share.

# "developer" is OpenAI's newer word for the system's voice.
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
THINKING = ("reasoning_content", "thinking", "reasoning")
# A message and what it says about its turn.
AnnotatedMessage = tuple[Message, Row]


def read_messages(value: Any, what: str) -> list[AnnotatedMessage]:
    """A list of messages; their order is not checked."""
    found: list[AnnotatedMessage] = []
    for i, one in enumerate(typed(value, list, what)):
        message, where, note = read_message(one, f"{what}[{i}]"), f"{what}[{i}] ", Row()
        if message.role == "assistant":
            note = {key: optional(one, key, str, where) for key in ("action", "error", "state")}
            note |= {key: number(one, key, where) for key in ("reward", "progress")}
            if (weight := number(one, "weight", where)) not in (None, 0, 1):
                raise RowError("wrong_type", f'{where}"weight" is {weight}; it must be 0 or 1')
            note["trained"] = weight != 0
        found.append((message, note))
    return found


def read_message(value: Any, what: str) -> Message:
    """One message."""
    message: Row = typed(value, dict, what)
    where = f"{what} "
    role = ROLES.get(field(message, "role", str, where))
    if role is None:
        raise RowError("wrong_type", f'{where}"role" is {message["role"]!r:.40}; it must be one of {", ".join(ROLES)}')
    if message.get("function_call") is not None:
        raise RowError("wrong_type", f'{where}"function_call" is not supported; write it as "tool_calls"')
    content = optional(message, "content", (str, list), where)
    if content is None and role != "assistant":
        raise RowError("missing_field", f'{where}"content" is missing')
    if isinstance(content, list):
        parts = [typed(part, dict, f"{where}content[{i}]") for i, part in enumerate(content)]
        for i, part in enumerate(parts):
            if field(part, "type", str, f"{where}content[{i}] ") != "text":
                kind = f"{part['type']!r:.40}; only text can be trained on"
                raise RowError("wrong_type", f"{where}content[{i}] is of type {kind}")
        content = "".join(field(part, "text", str, f"{where}content[{i}] ") for i, part in enumerate(parts))
    calls = optional(message, "tool_calls", list, where) or []
    return Message(
        role=role,
        content=content or "",
        hint=optional(message, "hint", str, where),
        reasoning=next((text for key in THINKING if (text := optional(message, key, str, where)) is not None), None),
        tool_calls=[read_tool_call(call, f"{where}tool_calls[{i}]") for i, call in enumerate(calls)],
        tool_call_id=optional(message, "tool_call_id", str, where),
        name=optional(message, "name", str, where),
    )


def read_tool_call(value: Any, what: str) -> ToolCall:
    """One tool call, its function wrapped (`{"function": {"name": …}}`) or bare (`{"name": …}`)."""
    call: Row = typed(value, dict, what)
    where = f"{what} "
    if (optional(call, "type", str, where) or "function") != "function":
        raise RowError("wrong_type", f'{where}"type" is {call["type"]!r:.40}; only functions can be called')
    function = optional(call, "function", dict, where) or call
    arguments = optional(function, "arguments", (dict, str), where)
    if isinstance(arguments, str):
        arguments = typed(parse(arguments or "{}", f'{where}"arguments"'), dict, f'{where}"arguments"')
    return ToolCall(
        name=field(function, "name", str, where),
        arguments=jsonable(arguments or {}),
        id=optional(call, "id", str, where),
    )


def read_tools(row: Row) -> list[Row]:
    """The schemas of the tools: a list, or the same as JSON text."""
    tools = optional(row, "tools", (list, str))
    if isinstance(tools, str):
        tools = typed(parse(tools or "[]", '"tools"'), list, '"tools"')
    return [jsonable(typed(tool, dict, f"tools[{i}]")) for i, tool in enumerate(tools or [])]


def read_turns(said: list[AnnotatedMessage], begin: int | None = None) -> tuple[list[Message], list[Turn]]:
    """Start and turns, with what the replies say about their turns."""
    messages = [message for message, _ in said]
    notes = [note for message, note in said[begin or 0 :] if message.role == "assistant"]
    start, turns = split_turns(messages, begin=begin, trained=[note.get("trained", True) for note in notes])
    return start, [turn.model_copy(update=note) for turn, note in zip(turns, notes, strict=True)]


def parse(text: str, what: str) -> Any:
    """The JSON value of a text inside a row."""
    try:
        value = from_json(text)
        json.dumps(value, allow_nan=False)  # 1e999 is JSON, but no number
        return value
    except ValueError as error:
        raise RowError("wrong_type", f"{what} is not JSON: {error}") from None


def write_message(message: Message) -> Row:
    """The JSON of one message as in TRL: arguments are an object."""
    calls = [
        given(id=call.id) | {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    more = given(
        hint=message.hint,
        reasoning_content=message.reasoning,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
    )
    return {"role": message.role, "content": message.content, **more}


def write_turns(turns: list[Turn]) -> list[Row]:
    """The messages of turns; the replies carry what is known about their turns."""
    messages = []
    for turn in turns:
        note = given(
            action=turn.action,
            reward=turn.reward,
            progress=turn.progress,
            error=turn.error,
            state=turn.state,
            weight=None if turn.trained else 0,
        )
        messages += [write_message(turn.reply) | note, *map(write_message, turn.observation)]
    return messages


S = TypeVar("S", list[int], str)


def common_prefix(left: S, right: S) -> int:
    """Number of leading tokens or characters that two lists or texts share (by bisection: comparing slices is fast)."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
