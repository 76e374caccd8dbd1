"""Strategies for records that hold conversations, within what other formats can express."""

from typing import Any

from hypothesis import strategies as st

from bough.types import Message, Pair, Task, ToolCall, Trajectory, Turn

texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = texts.filter(bool)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, values, max_size=2)
# Columns of their own: an info that repeats a column of the format cannot be written.
infos = st.dictionaries(names.map("x_{}".format), values.filter(lambda value: value is not None), max_size=2)
tasks = st.builds(Task, id=names, environment=st.none() | texts, seed=st.none() | st.integers(0, 2**40), data=objects)
tool_calls = st.lists(st.builds(ToolCall, name=names, arguments=objects, id=st.none() | names), max_size=2)
tool_results = st.builds(
    Message, role=st.just("tool"), content=texts, tool_call_id=st.none() | names, name=st.none() | names
)
asks = st.builds(Message, role=st.just("user"), content=texts)
systems = st.builds(Message, role=st.just("system"), content=texts)
endings: dict[str, Any] = {
    "rewards": st.dictionaries(st.just("reward") | names, st.none() | finite, max_size=2),
    "success": st.none() | st.booleans(),
    "stop": st.none() | texts,
}


@st.composite
def turns(draw: st.DrawFn) -> list[Turn]:
    """Turns as a chat has them; only the last may end without an observation."""
    made = []
    count = draw(st.integers(1, 3))
    for i in range(count):
        calls = draw(tool_calls)
        trained = draw(st.booleans())
        content = texts if calls or not trained else texts.filter(lambda text: text.strip())
        reply = Message(role="assistant", content=draw(content), reasoning=draw(st.none() | texts), tool_calls=calls)
        says = st.lists(tool_results, min_size=1, max_size=2) if calls else st.lists(asks, min_size=1, max_size=2)
        observation = draw(says if i < count - 1 else says | st.just([]))
        made.append(
            Turn(
                reply=reply,
                observation=observation,
                trained=trained,
                action=draw(st.none() | texts),
                reward=draw(st.none() | finite),
                error=draw(st.none() | texts),
            )
        )
    return made


@st.composite
def starts(draw: st.DrawFn) -> list[Message]:
    """A system message or none, a user's, and perhaps a round that was played before."""
    start = [*draw(st.lists(systems, max_size=1)), draw(asks)]
    if draw(st.booleans()):
        start += [Message(role="assistant", content=draw(texts)), draw(asks)]
    return start


trajectories = st.builds(
    Trajectory,
    id=names,
    task=tasks,
    start=starts(),
    turns=turns(),
    tools=st.lists(objects, max_size=2),
    info=infos,
    **endings,
)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    chosen, rejected = draw(st.tuples(turns(), turns()).filter(lambda sides: _replies(sides[0]) != _replies(sides[1])))
    return Pair(
        task=draw(tasks),
        start=draw(starts()),
        chosen=chosen,
        rejected=rejected,
        tools=draw(st.lists(objects, max_size=2)),
        reason=draw(st.none() | texts),
        margin=draw(st.none() | finite),
        info=draw(infos),
    )


def _replies(side: list[Turn]) -> list[Message]:
    return [turn.reply for turn in side]
