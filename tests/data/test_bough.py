"""What Bough's own format adds to a record."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from bough.data.base import common_prefix
from bough.data.bough import read, write
from bough.types import Call, Group, Message, Pair, Task, Trajectory, Turn
from tests.data.file_records import grouped

ids = st.lists(st.integers(0, 1), max_size=6)
calls = st.builds(
    lambda prompt, answer, scored, **more: Call(
        prompt_ids=prompt, completion_ids=answer, logprobs=[-0.5] * len(answer) if scored else None, **more
    ),
    ids, ids, st.booleans(), temperature=st.sampled_from([None, 1.0]), finish=st.sampled_from([None, "stop"]),
)  # fmt: skip
turns = st.builds(
    Turn,
    reply=st.builds(Message, role=st.just("assistant"), content=st.text(max_size=3)),
    call=st.none() | calls,
    action=st.none() | st.text(max_size=3),
)
tasks = st.builds(Task, id=st.text(max_size=3), data=st.sampled_from([{}, {"game": {"things": [[1, None, "é"]]}}]))
start = [Message(role="user", content="Go.")]
trajectories = st.builds(Trajectory, id=st.text(max_size=3), task=tasks, start=st.just(start), turns=st.lists(turns))
other = Turn(reply=Message(role="assistant", content="other"))
pairs = st.builds(
    lambda task, chosen: Pair(task=task, start=start, chosen=chosen, rejected=[*chosen, other]),
    tasks,
    st.lists(turns, min_size=1, max_size=3),
)
groups = st.builds(grouped, task=tasks, attempts=st.lists(trajectories, min_size=1, max_size=2))


@given(trajectories | pairs | groups)
def test_a_row_is_the_record_in_pydantics_order_with_shared_prompts(record: Trajectory | Pair | Group):
    row, plain = write(record), record.model_dump(exclude_defaults=True)
    previous: list[int] = []
    for part in plain.get("attempts", [plain]):
        for turn in [turn for key in ("turns", "chosen", "rejected") for turn in part.get(key, [])]:
            if call := turn.get("call"):
                whole = call["prompt_ids"]
                if shared := common_prefix(previous, whole):
                    call |= {"prompt_ids": whole[shared:], "shared": shared}
                previous = whole + call["completion_ids"]
    assert to_json(row) == to_json({"bough": row["bough"], **plain})
    assert read(row) == record


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20))
def test_the_common_prefix_ends_where_two_lists_or_texts_differ(left: list[int], right: list[int]):
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length in (len(left), len(right)) or left[length] != right[length]
    assert common_prefix("".join(map(str, left)), "".join(map(str, right))) == length
