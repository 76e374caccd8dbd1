import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bough.data.base import Row, Sample, faithful
from bough.data.reader import FORMATS
from bough.errors import RowError
from bough.types import Call, Message, Task, Trajectory, Turn
from tests.data.file_records import samples

RECORD = Trajectory(
    id="a",
    task=Task(id="t"),
    start=[Message(role="user", content="Hi")],
    turns=[Turn(reply=Message(role="assistant", content="Yes."), call=Call(prompt_ids=[1], completion_ids=[2]))],
    info={"empty": None},
)


def reading(**change: object):
    """A reader that makes the record of any row, but for a change."""
    lossy = RECORD.model_copy(
        update={"turns": [RECORD.turns[0].model_copy(update={"call": None})], "info": {}, **change}
    )
    return lambda row: lossy


def test_tokens_and_nulls_may_be_lost():
    row: Row = {"messages": []}
    assert faithful("trl", RECORD, row, reading()) is row


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"id": "b"}, "id"),
        ({"task": Task(id="t", seed=3)}, "task.seed"),
        ({"turns": [Turn(reply=Message(role="assistant", content="No."))]}, "turns[0].reply.content"),
        ({"turns": []}, "turns"),
        ({"info": {"note": 1}}, "info.note"),
    ],
)
def test_anything_else_that_would_be_lost_is_named(change: dict, place: str):
    with pytest.raises(RowError) as error:
        faithful("trl", RECORD, {}, reading(**change))
    assert error.value.reason == "cannot_express"
    assert str(error.value) == f"trl cannot express {place} of this record"


WRITABLE = [format for format in FORMATS.values() if format.write and format.name != "bough"]


@given(format=st.sampled_from(WRITABLE), record=samples)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_record_is_written_or_refused(format, record: Sample):
    reason, again = "", record
    try:
        again = format.read(format.write(record))
    except RowError as error:
        reason = error.reason
    assert reason in ("", "cannot_express")
    assert type(again) is type(record)
