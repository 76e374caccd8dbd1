"""What holds for all formats together."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bough.data import trl
from bough.data.base import Row
from bough.data.reader import FORMATS, detect, named
from bough.errors import InputError, RowError
from bough.types import Group
from tests.data.samples import FOLDER, FORMAT_OF, SAMPLES


def test_every_sample_file_has_its_format():
    assert {path.stem for path in FOLDER.glob("*.jsonl")} >= set(FORMAT_OF)
    assert set(FORMAT_OF.values()) == set(FORMATS) - {"bough"}


def as_table(value: object) -> object:
    """`value` as Parquet gives it back: in a list of objects, all have the keys of all, null where there was none."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        keys = {key for item in value for key in item}
        return [{key: as_table(item.get(key)) for key in keys} for item in value]
    if isinstance(value, dict):
        return {key: item if key in ("arguments", "tools") else as_table(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(("name", "row"), SAMPLES)
def test_a_sample_is_detected_whatever_is_null_and_is_the_same_from_a_table_and_once_written(name: str, row: Row):
    table, columns = as_table(row), {column for _, other in SAMPLES for column in other}
    assert detect(row).name == detect(table).name == detect({**dict.fromkeys(columns), **row}).name == name
    record = FORMATS[name].read(row)
    assert FORMATS[name].read(table) == record
    if FORMATS[name].write:
        written = json.loads(json.dumps(FORMATS[name].write(record)))
        assert detect(written).name == name and detect(written).read(written) == record
    if not isinstance(record, Group):
        assert trl.read(trl.write(record)) == record


@pytest.mark.parametrize(("name", "row"), [sample for sample in SAMPLES if "chosen" in sample[1]])
@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_preference_that_lacks_a_side_is_never_read_as_something_else(name: str, row: Row, side: str):
    row = {key: value for key, value in row.items() if key != side}
    with pytest.raises(RowError) as error:
        detect(row).read(row)
    assert error.value.reason in ("unknown_format", "missing_field")


def test_ultrafeedback_with_its_three_copies_is_a_trl_preference():
    said = [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}] for text in ("Yes.", "No.")]
    row = {"prompt": "Hi", "chosen": said[0], "rejected": said[1], "messages": said[0], "score_chosen": 8.0}
    assert detect(row).name == "trl"
    assert [turn.reply.content for turn in detect(row).read(row).rejected] == ["No."]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"text": "The sky is blue."},
        {"prompt": "The sky is"},
        {"instruction": "Say hi", "input": "now"},
        {"messages": None},
    ],
)
def test_a_row_of_no_format_is_told_what_it_has_and_what_is_known(row: Row):
    with pytest.raises(RowError) as error:
        detect(row)
    assert error.value.reason == "unknown_format"
    assert all(repr(column) in str(error.value) for column in row)
    assert all(name in str(error.value) for name in FORMATS)


def test_a_misspelt_format_is_asked_about():
    assert named("knowlyr-sft").name == "knowlyr-sft"
    with pytest.raises(InputError, match=r"'knowlyr-stf' is not a format; did you mean knowlyr-sft\?"):
        named("knowlyr-stf")


def nested(depth: int) -> object:
    value: object = []
    for _ in range(depth):
        value = [{"a": value}]
    return value


texts = st.text(max_size=6) | st.sampled_from(
    ["", " ", "user", "assistant", "gpt", "human", "tool", "\ud800", "{}", "[{", "Step 1:\nAction:"]
)
numbers = st.integers() | st.floats() | st.sampled_from([float("nan"), float("inf"), 10**400])
odd = st.sampled_from([3, 150, 900]).map(nested)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
REASONS = {
    "not_utf8", "too_large", "missing_field", "wrong_type", "wrong_length", "not_finite", "empty_completion",
    "same_reply", "unbalanced_roles",
}  # fmt: skip


def check(row: Row) -> None:
    """Every format reads the row into a record that JSON can hold, or says in a known word what is wrong."""
    reasons = set()
    for format in [format for format in FORMATS.values() if format.name != "bough"]:
        format.matches(row)
        try:
            format.read(row).model_dump_json()
        except RowError as error:
            reasons.add(error.reason)
            str(error).encode()
    assert reasons <= REASONS


def places(value: object) -> list[tuple]:
    """Every (container, key) inside `value`."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [place for key, item in items for place in ((value, key), *places(item))]


JUNK = [None, True, 0, 10**5000, float("nan"), "", "x", "\ud800", b"x", [], {}, ["x"], {"\ud800": 1}, nested(300)]


@pytest.mark.parametrize("number", range(len(JUNK)))
def test_junk_in_any_place_of_any_sample_is_a_row_error_or_none(number: int):
    for _, row in SAMPLES:
        damaged = copy.deepcopy(row)
        for container, key in places(damaged):
            was, container[key] = container[key], JUNK[number]
            check(damaged)
            container[key] = was
        assert damaged == row, "reading changes no row"


@st.composite
def damaged(draw: st.DrawFn) -> Row:
    """A sample with one to three places, anywhere in it, replaced or removed."""
    row = copy.deepcopy(draw(st.sampled_from([row for _, row in SAMPLES])))
    for _ in range(draw(st.integers(1, 3))):
        place = row
        while place:
            key = draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
            if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            if draw(st.booleans()):
                place[key] = draw(values)
            else:
                del place[key]
            break
    return row


@given(row=damaged())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_damage_to_a_good_row_raises_anything_but_a_row_error(row: Row):
    check(row)


@pytest.mark.parametrize("tag", [None, "trajectory/0", "trajectory/١", f"trajectory/{'1' * 5000}"])
def test_a_row_without_a_proper_tag_is_a_bad_row_where_the_format_is_given(tag: str | None):
    with pytest.raises(RowError, match=r'"bough" is .{4,40}; it must be one of'):
        FORMATS["bough"].read({"bough": tag, "id": "a"})
