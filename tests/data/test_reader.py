import contextlib
import itertools
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bough.data.reader import GROUPS_SHOWN, Problem, Problems, Reader, raw_rows, read
from bough.errors import InputError
from bough.types import Trajectory

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def line(row: object) -> bytes:
    return json.dumps(row).encode() + b"\n"


def test_rows_read_in_another_process_are_the_same(tmp_path: Path):
    """What travels is a pickle: the format goes by its name, and bad rows keep their reasons."""
    path = write(tmp_path / "a.jsonl", line(GOOD), b"{not json}\n", *[line(GOOD)] * 200, b'{"messages": [{"role": "us')
    here, there = (
        [(number, found if isinstance(found, Trajectory) else (found.reason, str(found))) for number, found in read_]
        for read_ in (
            itertools.chain.from_iterable(rows.read() for rows in raw_rows(path)),
            itertools.chain.from_iterable(pickle.loads(pickle.dumps(rows)).read() for rows in raw_rows(path)),
        )
    )
    assert here == there and [number for number, _ in here] == list(range(1, 204))
    assert [found for _, found in here if isinstance(found, tuple)] == [
        ("not_json", "not JSON: key must be a string at column 2"),
        ("torn", "the last line is cut off: EOF while parsing a string at column 26"),
    ]


def test_every_bad_row_is_named_with_its_line(tmp_path: Path):
    path = write(
        tmp_path / "a.jsonl",
        line(GOOD),
        b"{not json}\n",
        b'{"messages": "\xff"}\n',
        b"\n",
        line({"messages": []}),
        line([1, 2]),
        line(GOOD),
        b'{"messages": [{"role": "us',
    )
    problems: list[Problem] = []
    reader = Reader(path, on_error="skip", on_problem=problems.append)
    assert len(list(reader)) == 2
    assert [(p.line, p.reason) for p in problems] == [
        (2, "not_json"), (3, "not_utf8"), (5, "unbalanced_roles"), (6, "not_json"), (8, "torn"),
    ]  # fmt: skip
    assert str(problems[0]) == f"{path}:2: not JSON: key must be a string at column 2"
    assert reader.rows == 7
    assert reader.skipped == {"not_json": 2, "not_utf8": 1, "unbalanced_roles": 1, "torn": 1}
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        list(read(path))


def test_a_damaged_row_does_not_change_the_format_of_the_file(tmp_path: Path):
    pair = {"prompt": "Hi", "chosen": "Hello", "rejected": "Go away"}
    path = write(tmp_path / "a.jsonl", line({"prompt": "Hi", "chosen": "Hello"}), line(pair), line(pair))
    reader = Reader(path, on_error="skip")
    assert len(list(reader)) == 2
    assert reader.skipped == {"missing_field": 1}


def test_a_folder_of_shards_reads_in_order_of_name(tmp_path: Path):
    for name in ("b", "a", "c"):
        row = {"messages": [{"role": "user", "content": name}, {"role": "assistant", "content": "Hello"}]}
        write(tmp_path / f"{name}.jsonl", line(row))
    (tmp_path / "notes.txt").write_text("not data")
    assert [r.start[0].content for r in read(tmp_path) if isinstance(r, Trajectory)] == ["a", "b", "c"]


def test_what_cannot_be_read_at_all_is_said_plainly(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        list(read(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="contains no data file"):
        list(read(tmp_path))
    with pytest.raises(InputError, match="did you mean trl"):
        Reader(tmp_path, format="tlr")


@given(
    rows=st.lists(
        st.binary(max_size=40) | st.sampled_from([line(GOOD), b"[", b"\xef\xbb\xbf", b'"', b"NaN", b"[" * 3000]),
        max_size=6,
    )
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_bytes_never_break_the_reader(tmp_path: Path, rows: list[bytes]):
    path = write(tmp_path / "fuzz.jsonl", b"\n".join(rows))
    reader = Reader(path, on_error="skip")
    with contextlib.suppress(InputError):  # of a file that is not text
        good = sum(1 for _ in reader)
        assert good + reader.skipped.total() == reader.rows


def test_zeros_that_a_crash_left_cost_only_their_rows(tmp_path: Path):
    path = write(tmp_path / "crashed.jsonl", line(GOOD) + b"\0" * 100 + b"\n" + line(GOOD))
    reader = Reader(path, on_error="skip")
    assert sum(1 for _ in reader) == 2 and reader.rows == 3


def test_repeats_of_one_problem_are_one_line_and_many_problems_are_bounded():
    problems = Problems()
    for number in range(1, 9):
        problems.add(Problem("a.jsonl", number, "wrong_type", f"reward is 'x{number}'; it must be a number"))
    problems.add(Problem("b.jsonl", 3, "missing_field", '"chosen" is missing'))
    assert problems.lines() == [
        "a.jsonl:1: reward is 'x1'; it must be a number (8 rows, also a.jsonl:2, a.jsonl:3, a.jsonl:4, a.jsonl:5, …)",
        'b.jsonl:3: "chosen" is missing',
    ]
    assert problems.reasons == {"wrong_type": 8, "missing_field": 1} and problems.to_json()[0]["count"] == 8
    for number in range(GROUPS_SHOWN + 5):
        problems.add(Problem("a", number, "odd", "x" * number))
    assert len(problems.lines()) == GROUPS_SHOWN + 1
    assert problems.lines()[-1] == "and 7 more rows with other problems"


PEAK = r"""
import re, sys
from bough.data.reader import read
rows = sum(1 for _ in read(sys.argv[1]))
# Not getrusage: its peak is inherited from the process that started this one.
print(rows, int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) / 1024)
"""


def test_a_large_file_streams_in_constant_memory(tmp_path: Path):
    """100 MB of rows, of which as objects none would be less. benchmarks/reading.py does the same with 1 GB."""
    row = {"messages": [{"role": "user", "content": "x" * 20_000}, {"role": "assistant", "content": "y" * 20_000}]}
    path = tmp_path / "large.jsonl"
    path.write_bytes(line(row) * 2_500)
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    rows, megabytes = done.stdout.split()
    assert int(rows) == 2_500
    assert float(megabytes) < 90  # it takes 38
