"""Strategies for arbitrary records."""

from typing import Any

from hypothesis import strategies as st

from bough.types import Call, Group, Message, Pair, Task, ToolCall, Trajectory, Turn
from tests.data.records import finite, values
from tests.data.records import texts as text

json_objects = st.dictionaries(text, values, max_size=3)
token_ids = st.lists(st.integers(0, 200_000), max_size=12)
tool_calls = st.builds(ToolCall, name=text, arguments=json_objects, id=st.none() | text)


def messages(*roles: str) -> st.SearchStrategy[Message]:
    return st.builds(Message, role=st.sampled_from(roles), content=text)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    completion = draw(token_ids)
    scored = draw(st.booleans())
    return Call(
        # Small ids make shared prefixes likely.
        prompt_ids=draw(token_ids | st.lists(st.integers(0, 1), max_size=8)),
        completion_ids=completion,
        logprobs=[-abs(draw(finite)) for _ in completion] if scored else None,
        text=draw(text),
        finish=draw(st.sampled_from([None, "stop", "length", "abort"])),
        policy=draw(st.none() | text),
    )


turns = st.builds(
    Turn,
    reply=st.builds(
        Message,
        role=st.just("assistant"),
        content=text,
        reasoning=st.none() | text,
        tool_calls=st.lists(tool_calls, max_size=2),
    ),
    call=st.none() | calls(),
    action=st.none() | text,
    observation=st.lists(messages("user", "tool"), max_size=2),
    reward=st.none() | finite,
    error=st.none() | text,
    trained=st.booleans(),
)
tasks = st.builds(
    Task, id=text, environment=st.none() | text, seed=st.none() | st.integers(0, 2**63), data=json_objects
)
starts = st.lists(messages("system", "user", "assistant", "tool"), min_size=1, max_size=3)
trajectories = st.builds(
    Trajectory,
    id=text,
    task=tasks,
    start=starts,
    turns=st.lists(turns, max_size=4),
    tools=st.lists(json_objects, max_size=1),
    rewards=st.dictionaries(text, st.none() | finite, max_size=3),
    success=st.none() | st.booleans(),
    stop=st.none() | text,
    info=json_objects,
)
pairs = (
    st.tuples(st.lists(turns, min_size=1, max_size=3), st.lists(turns, min_size=1, max_size=3))
    .filter(lambda both: [t.reply for t in both[0]] != [t.reply for t in both[1]])
    .flatmap(
        lambda both: st.builds(
            Pair, task=tasks, start=starts, chosen=st.just(both[0]), rejected=st.just(both[1]),
            reason=st.none() | text, margin=st.none() | finite, info=json_objects,
        )
    )
)  # fmt: skip


def grouped(task: Task, attempts: list[Trajectory], **more: Any) -> Group:
    return Group(task=task, attempts=[one.model_copy(update={"task": task}) for one in attempts], **more)


groups = st.builds(grouped, task=tasks, attempts=st.lists(trajectories, min_size=1, max_size=3), info=json_objects)
samples = trajectories | pairs | groups
