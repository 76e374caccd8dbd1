"""What comes back from a program, however much it writes, wherever, and whatever it says."""

import asyncio

import pytest

from tests.sandbox.conftest import LIMITS, Box

pytestmark = pytest.mark.usefixtures("works_afterwards")


def test_a_gigabyte_of_output_is_read_and_not_kept(box: Box):
    result = box.run(
        "import os\nprint('first', flush=True)\nfor _ in range(1024):\n    os.write(1, b'x' * 2**20)\nprint('last')",
        timeout_s=60,
    )
    assert result.ok and result.truncated and len(result.stdout) < LIMITS.output_bytes + 100
    assert result.stdout.startswith("first\nxxx") and result.stdout.endswith("xlast\n")
    assert "bytes left out" in result.stdout


def test_an_endless_value_and_an_endless_error_are_cut(box: Box):
    assert len(box.run("'x' * 10**7").value or "") < LIMITS.output_bytes + 100
    result = box.run("raise ValueError('x' * 10**6 + 'end')")
    assert len(result.error or "") < LIMITS.output_bytes + 100 and (result.error or "").endswith("end")


def test_a_copy_of_the_program_does_not_answer_for_it(box: Box):
    result = box.run("import os, time\npid = os.fork()\nif pid:\n    os.wait()\n    time.sleep(0.1)\nbool(pid)")
    assert result.value == "True"


def test_a_crash_of_the_interpreter_is_told(box: Box):
    result = box.run("import ctypes\nprint('before', flush=True)\nctypes.string_at(0)")
    assert result.error == "The process was killed by SIGSEGV." and result.stdout == "before\n"
    assert box.run("import os\nos._exit(3)").error == "The process exited with status 3 before the end of the code."


def test_output_that_is_no_text_becomes_text(box: Box):
    result = box.run("import os\nos.write(1, b'\\xff\\xfe ok \\x00')\nprint('\\ud800')\n'\\udcff'")
    assert result.stdout.startswith("\ufffd\ufffd ok \x00")
    for text in (result.stdout, result.value, box.run("raise ValueError('\\ud800')").error):
        assert text and text.encode()
    assert box.run("'\ud800'").value is not None


def test_closing_every_file_harms_the_program_alone(box: Box):
    box.run("1")
    before = box.pid
    result = box.run("import os\nos.closerange(0, 1 << 16)")
    assert result.error is not None and "before" in result.error
    assert box.pid == before


@pytest.mark.parametrize(
    "bytes_",
    [
        "b'garbage' * 100",
        "b'\\xff' * 4",
        "b'\\0\\0\\0\\2[]'",
        "b'\\0\\0\\0\\x0d{\"value\": 1 }'",
        "b'\\0\\0\\1\\0' + b'[' * 256",
    ],
)
def test_garbage_in_any_file_is_not_an_answer(box: Box, bytes_: str):
    box.run("1")
    before = box.pid
    result = box.run(
        f"import os\nfor file in range(3, 1024):\n    try:\n        os.write(file, {bytes_})\n"
        "    except OSError:\n        pass"
    )
    assert result.killed == "garbage" and result.value is None
    assert box.run("'next'").value == "'next'" and box.pid == before


def test_a_forged_answer_is_not_taken_for_the_next_one(box: Box):
    forge = (
        "import os, json, struct, sys, time\nframe = sys._getframe()\n"
        "while 'message' not in frame.f_locals: frame = frame.f_back\nnumber = frame.f_locals['message']['number']\n"
        "text = json.dumps({'number': number, 'value': 'forged', 'error': None}).encode()\n"
        "os.write(251, struct.pack('>I', len(text)) + text)\ntime.sleep(0.3)"
    )
    assert box.run(forge).value == "forged"  # as good as printing it
    assert box.run("'honest'").value == "'honest'"

    async def in_a_session() -> list[object]:
        async with box.sandbox.session() as session:
            return [await session.run(forge), await asyncio.sleep(0.6), await session.run("1"), await session.run("2")]

    forged, _, stale, honest = box.do(in_a_session())
    assert forged.value == "forged" and stale.killed == "garbage" and stale.value is None
    assert honest.value == "2"
