import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bough.sandbox.base import BrokenError, Result, SandboxError, SandboxLimits
from bough.sandbox.inside.kernel import descendants
from bough.sandbox.pool import Sandbox
from tests.sandbox.conftest import LIMITS, Box

FRAME = """
import json, os, time
def write(message):
    data = json.dumps(message).encode()
    os.write(251, len(data).to_bytes(4, 'big') + data)
"""


def test_a_program_has_its_output_its_value_and_its_error(box: Box):
    result = box.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert (result.stdout, result.stderr, result.value, result.error) == ("out\n", "err\n", "42", None)
    assert result.ok and not result.alive
    failed = box.run("print('before')\nraise KeyError('x')")
    assert failed.stdout == "before\n" and str(failed.error).endswith("KeyError: 'x'") and not failed.ok


def test_the_same_program_gives_the_same_answer(box: Box):
    code = "import random\nrandom.random(), hash('text'), list({'a', 'b', 'c'})"

    async def elsewhere() -> object:
        async with Sandbox(LIMITS, workers=1, isolation=box.sandbox.isolation) as sandbox:
            return await sandbox.run(code)

    assert box.run(code).value == box.run(code).value == box.do(elsewhere()).value


def test_a_session_keeps_its_names_files_and_threads(box: Box):
    async def play() -> list[object]:
        async with box.sandbox.session() as session:
            cells = ["x = 1\nopen('/tmp/f', 'w').write('y')", "x + 1", "open('/tmp/f').read()", "1 / 0", "x"]
            return [await session.run(cell) for cell in cells]

    results = box.do(play())
    assert [result.value for result in results] == ["1", "2", "'y'", None, "1"]
    assert all(result.alive for result in results)
    assert box.run("import os\nos.listdir('/tmp')").value == "[]"


def test_a_cell_that_takes_too_long_is_interrupted_and_the_session_lives(box: Box):
    async def play() -> list[object]:
        async with box.sandbox.session() as session:
            await session.run("x = 5")
            return [await session.run("while True:\n    pass", timeout_s=1), await session.run("x")]

    slow, after = box.do(play())
    assert slow.timed_out and slow.alive and slow.killed is None and str(slow.error).endswith("KeyboardInterrupt")
    assert after.value == "5"


def test_a_cell_that_will_not_be_interrupted_is_killed_and_the_session_begins_anew(box: Box):
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)"

    async def play() -> list[object]:
        async with box.sandbox.session() as session:
            await session.run("x = 5")
            return [await session.run(stubborn, timeout_s=1.5), await session.run("'x' in globals()")]

    slow, after = box.do(play())
    assert slow.timed_out and slow.killed == "time" and not slow.alive
    assert after.value == "False" and after.alive


def test_sessions_see_no_file_and_no_process_of_each_other(box: Box):
    async def play() -> list[object]:
        leave = "import os, time\nopen('/tmp/mine', 'w').close()\nopen('/dev/shm/mine', 'w').close()\n"
        leave += "if not os.fork(): time.sleep(60)"
        look = "import os\nalive = []\nfor pid in range(2, 400):\n    try:\n        os.kill(pid, 0)\n"
        look += (
            "        alive.append(pid)\n    except OSError: pass\nfiles = os.listdir('/tmp') + os.listdir('/dev/shm')\n"
        )
        look += "files, alive == [os.getpid()], os.path.exists('/proc/1')"
        async with box.sandbox.session() as one, box.sandbox.session() as other:
            await one.run(leave + "\nx = 1")
            alone = await box.sandbox.run("3")
            found = [await other.run(look), await other.run("x"), await one.run("x, os.listdir('/tmp')"), alone]
            return [result.value for result in found]

    assert box.do(play()) == ["([], True, False)", None, "(1, ['mine'])", "3"]


def test_threads_are_waited_for_and_long_code_goes_through_the_pipe(box: Box):
    long = box.run("x = '" + "a" * 300_000 + "'\nlen(x)")
    assert long.value == "300000"
    code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()"
    assert box.run(code).stdout == "late\n"


def test_a_program_can_ask_in_the_middle_of_its_run(box: Box):
    async def play() -> list[object]:
        async def answer(text: str) -> str:
            return text.upper()

        whole = await box.sandbox.run("''.join(ask(letter) for letter in 'abc')", answer=answer)
        async with box.sandbox.session() as session:
            long = await session.run("len(ask('x' * 100_000)), ask('é')", answer=answer)
            return [whole.value, long.value, (await session.run("1")).value, (await box.sandbox.run("ask('x')")).error]

    whole, long, after, unasked = box.do(play())
    assert (whole, long, after) == ("'ABC'", "(100000, 'É')", "1")
    assert "name 'ask' is not defined" in unasked
    assert box.run(FRAME + "write({'ask': 'a'})\ntime.sleep(60)", timeout_s=5).value is None


@pytest.mark.parametrize(
    "code",
    [
        "write({'ask': 'a'})\nwrite({'ask': 'b'})\ntime.sleep(60)",
        "write({'ask': 'a'})\ntime.sleep(0.1)\nwrite({'ask': 'b'})\ntime.sleep(60)",
        "write({'ask': ['a']})\ntime.sleep(60)",
        "os.write(251, b'\\xff' * 100)\ntime.sleep(60)",
    ],
)
def test_questions_that_are_none_end_the_program(box: Box, code: str):
    async def play() -> object:
        async def answer(text: str) -> str:
            await asyncio.sleep(1)
            return text

        return await box.sandbox.run(FRAME + code, answer=answer)

    result = box.do(play())
    assert result.killed == "garbage"
    assert box.run("1").value == "1"


LOOK = """
import importlib, sys
def writable(name):
    try:
        open(importlib.import_module(name).__file__, "a")
        return True
    except OSError:
        return False
    except (ImportError, TypeError):  # an empty folder is a package without a file
        return None
[writable(name) for name in ("pydantic", "yaml", "further")]
"""


def test_packages_are_hidden_and_added_and_cannot_be_changed(box: Box, tmp_path: Path):
    (tmp_path / "further.py").write_text("VALUE = 42")
    tmp_path.chmod(0o755)

    async def play() -> Result:
        given = {"hidden": ("pydantic", "no_such_package"), "packages": (str(tmp_path),)}
        async with Sandbox(LIMITS, workers=1, isolation=box.sandbox.isolation, **given) as sandbox:
            return await sandbox.run(LOOK)

    assert box.run(LOOK).value == "[False, False, None]"
    assert box.do(play()).value == "[None, False, False]"


def test_a_keeper_that_dies_is_a_sandbox_error_and_the_next_program_runs(box: Box):
    async def play() -> None:
        task = asyncio.create_task(box.sandbox.run("import time\ntime.sleep(60)", timeout_s=60))
        while not box.sandbox._busy or not descendants(next(iter(box.sandbox._busy)).pid or 0):
            await asyncio.sleep(0.05)
        (worker,) = box.sandbox._busy
        await asyncio.sleep(0.3)
        for pid in descendants(worker.pid or 0):
            with suppress(ProcessLookupError):  # the first of a namespace takes the others along
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(BrokenError, match="the sandbox broke"):
            await task

    box.do(play())
    assert box.run("1").value == "1"


def test_a_program_that_nobody_waits_for_any_more_is_ended(box: Box):
    box.run("1")  # a keeper that is ready

    async def play() -> int | None:
        task = asyncio.create_task(box.sandbox.run("import time\ntime.sleep(60)", timeout_s=60))
        while not box.sandbox._busy:
            await asyncio.sleep(0.01)
        (worker,) = box.sandbox._busy
        pid = worker.pid
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    pid = box.do(play())
    assert pid is not None and not Path(f"/proc/{pid}").exists()
    assert box.run("1").value == "1"


def test_closing_leaves_no_process_and_no_folder(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def play() -> list[int]:
        async with Sandbox(LIMITS, workers=2, isolation=box.sandbox.isolation) as sandbox:
            session = sandbox.session()
            await session.run("1")
            await asyncio.gather(*(sandbox.run("import time\ntime.sleep(0.1)") for _ in range(4)))
            return [pid for worker in [*sandbox._idle, *sandbox._busy] if (pid := worker.pid)]

    pids = box.do(play())
    assert len(pids) == 3
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert list(tmp_path.iterdir()) == []


def test_no_more_programs_run_at_once_than_there_are_workers(box: Box):
    async def play() -> int:
        async with Sandbox(LIMITS, workers=2, isolation=box.sandbox.isolation) as sandbox:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, len(sandbox._busy))
                    await asyncio.sleep(0.01)

            watching = asyncio.create_task(watch())
            results = await asyncio.gather(*(sandbox.run(str(n)) for n in range(12)))
            watching.cancel()
            assert [result.value for result in results] == [str(n) for n in range(12)]
            return most

    assert box.do(play()) == 2


def test_what_was_done_in_advance_is_found_done(box: Box):
    async def play() -> object:
        warm_up = "import decimal; decimal.warm = open('/tmp/made', 'w').write('by the warm-up')"
        async with Sandbox(LIMITS, workers=1, isolation=box.sandbox.isolation, warm_up=warm_up) as sandbox:
            await sandbox.run("1")
            pid = sandbox._idle[0].pid
            result = await sandbox.run("import sys\nsys.modules['decimal'].warm")
            assert sandbox._idle[0].pid == pid
            return result

    assert box.do(play()).value == "14"


def test_a_warm_up_that_fails_is_told(box: Box):
    async def play() -> None:
        async with Sandbox(LIMITS, isolation=box.sandbox.isolation, warm_up="import no_such_module") as sandbox:
            await sandbox.run("1")

    with pytest.raises(SandboxError, match=r"did not start .*No module named 'no_such_module'"):
        box.do(play())


def test_without_isolation_programs_still_run_with_their_limits():
    async def play() -> list[object]:
        async with Sandbox(
            SandboxLimits(timeout_s=60, memory_mb=300), workers=1, isolation="none", unsafe=True
        ) as sandbox:
            daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nos.getcwd() != '/'"
            cells = [daemon, "import time\ntime.sleep(600)", "bytearray(10**9)", "import os\nos.listdir()"]
            results = [await sandbox.run(cell, timeout_s=1 if "600" in cell else None) for cell in cells]
            assert len(descendants(sandbox._idle[0].pid or 0)) == 0
            return results

    left, slow, large, last = asyncio.run(play())
    assert left.value == "True" and slow.killed == "time" and str(large.error).endswith("MemoryError")
    assert last.value == "[]"
