"""Programs that try to hold more than they may, where nobody looks."""

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bough.sandbox.base import Result
from bough.sandbox.inside.keeper import STOP_AGAIN_S
from bough.sandbox.inside.launch import INODES
from bough.sandbox.inside.processes import descendants
from bough.sandbox.pool import Sandbox
from tests.sandbox.conftest import LIMITS, Box

HOARD = """
import os, signal, time
def hoard(count, megabytes):
    # Each takes its memory when it is woken after the cell.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
    for _ in range(count):
        if os.fork() == 0:
            signal.sigwait([signal.SIGCONT])
            data = bytearray(megabytes << 20)
            time.sleep(60)
            os._exit(0)
"""


async def ended(pid: int) -> bool:
    """Whether nothing but the keeper is left below `pid`, sooner or later, though all is woken time and again."""
    for _ in range(400):
        programs = descendants(pid)[1:]
        if not programs:
            return True
        for program in programs:
            with suppress(ProcessLookupError):
                os.kill(program, signal.SIGCONT)
        await asyncio.sleep(0.05)
    return False


def test_a_session_that_holds_too_much_between_cells_is_ended_then(box: Box):
    async def play() -> tuple[bool, Result, Result]:
        async with box.sandbox.session() as session:
            await session.run(HOARD)
            await session.run("hoard(6, 120)")
            (worker,) = box.sandbox._busy
            return await ended(worker.pid or 0), await session.run("1"), await session.run("2")

    gone, told, after = box.do(play())
    assert gone
    assert told.killed == "memory" and told.value is None and not told.alive
    assert after.value == "2" and after.alive


COUNTING = """
import os, threading, time
def count(name):
    file = open(f'/tmp/{name}', 'ab', 0)
    while True:
        file.write(b'x')
        time.sleep(0.01)
def counts():
    return [os.path.getsize(f'/tmp/{name}') if os.path.exists(f'/tmp/{name}') else 0 for name in ('thread', 'process')]
def wait(*begin):
    while any(now < then + 3 for now, then in zip(counts(), begin)):
        time.sleep(0.01)
    return counts()
threading.Thread(target=count, args=['thread'], daemon=True).start()
os.fork() or count('process')
"""


def test_nothing_runs_between_cells_and_all_goes_on_in_the_next(box: Box):
    async def play() -> list[list[int]]:
        async with box.sandbox.session() as session:
            assert (await session.run(COUNTING)).ok
            before = await session.run("wait(0, 0)")
            await asyncio.sleep(3 * STOP_AGAIN_S)
            first = await session.run("kept = counts()")
            assert first.ok
            answers = [before, await session.run("kept"), await session.run("wait(*kept)")]
            return [json.loads(answer.value or "") for answer in answers]

    for before, kept, later in zip(*box.do(play()), strict=True):
        # It counts a hundred times a second while it runs; starting and stopping takes a moment.
        assert kept - before < 200
        assert later >= kept + 3


def test_buffers_of_sockets_are_counted(box: Box):
    code = """
import os, socket, time
def fill():
    pairs = []
    try:
        while True:
            pairs.append(socket.socketpair())
            pairs[-1][0].setblocking(False)
            try:
                while True:
                    pairs[-1][0].send(b'x' * 65536)
            except BlockingIOError:
                pass
    except OSError:
        pass
    time.sleep(60)
for _ in range(12):
    os.fork() or fill()
time.sleep(60)
"""
    assert box.run(code, timeout_s=40).killed == "memory"


def test_buffers_of_sockets_cannot_be_enlarged(box: Box):
    code = "import socket\nsocket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)"
    assert str(box.run(code).error).endswith("Operation not permitted")


@pytest.mark.parametrize(
    "code",
    [
        "import mmap\nmmap.mmap(-1, 1 << 20)",
        "import mmap\nmmap.mmap(-1, 1 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)",
        "import mmap\nmmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20, flags=mmap.MAP_SHARED)",
        "system_call(278 if not ARM else 75, 1, 0, 0, 0)  # vmsplice",
        "system_call(275 if not ARM else 76, 1, 0, 1, 0, 1, 0)  # splice",
    ],
)
def test_memory_that_belongs_to_no_process_cannot_be_had(box: Box, code: str):
    prelude = (
        "import ctypes, os, platform\nARM = platform.machine() == 'aarch64'\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def system_call(*arguments):\n    if libc.syscall(*arguments) == -1:\n"
        "        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n"
    )
    error = str(box.run(prelude + code).error)
    assert error.endswith("Operation not permitted") or "No such file" in error


def test_private_mappings_and_shared_files_still_work(box: Box):
    code = (
        "import mmap, multiprocessing\nprivate = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "context = multiprocessing.get_context('fork')\nvalue = context.Value('i', 1)\n"
        "def work():\n    value.value = 7\n"
        "child = context.Process(target=work)\nchild.start()\nchild.join()\nlen(private), value.value"
    )
    assert box.run(code, timeout_s=20).value == "(4096, 7)"


@pytest.mark.parametrize("call", ["libc.inotify_init()", "libc.inotify_init1(0)", "libc.timer_create(1, None, timer)"])
def test_watches_and_timers_of_the_kernel_are_refused(box: Box, call: str):
    result = box.run(
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\ntimer = ctypes.create_string_buffer(64)\n"
        f"{call}, errno.errorcode[ctypes.get_errno()]"
    )
    assert result.value == "(-1, 'EPERM')"


def test_files_are_counted_however_small(box: Box):
    make = (
        "import os\ncount = 0\nos.mkdir(folder + '/d')\ntry:\n    while count < 50_000:\n"
        "        os.symlink('x', f'{folder}/d/{count}')\n        count += 1\nexcept OSError as error:\n"
        "    print(error.strerror)\ncount"
    )
    for folder in ("/tmp", "/dev/shm"):
        result = box.run(f"folder = {folder!r}\n{make}", timeout_s=40)
        assert result.stdout == "No space left on device\n", result
        assert INODES - 10 < int(result.value or 0) < INODES


def test_the_keeper_keeps_no_right_that_it_used_to_limit_the_files(box: Box):
    box.run("1")
    for pid in descendants(box.pid):
        status = Path(f"/proc/{pid}/status").read_text()
        assert "CapAmb:\t0000000000000000" in status
        # Rights in a namespace of users of its own, which owns no mount, are none.
        mine, theirs = (Path(f"/proc/{of}/ns/user") for of in ("self", pid))
        if os.geteuid() == 0:
            assert theirs.readlink() != mine.readlink() or "CapEff:\t0000000000000000" in status
    result = box.run(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.mount(b'tmpfs', b'/tmp', None, 32, b'nr_inodes=1m'), ctypes.get_errno()"
    )
    assert result.value == "(-1, 1)"


def test_a_hundred_and_fifty_sessions_share_a_few_places(box: Box):
    places, episodes = 4, 150
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(descendants(os.getpid())) - before)
            await asyncio.sleep(0.02)

    async def episode(sandbox: Sandbox, number: int) -> tuple[str | None, str | None]:
        async with sandbox.session() as session:
            first = await session.run(f"x = {number}\nopen('/tmp/file', 'w').write(str(x))")
            await session.run("x += 1")
            await asyncio.sleep(0)
            return first.value, (await session.run("x, open('/tmp/file').read()")).value

    async def play() -> list[tuple[str | None, str | None]]:
        watching = asyncio.create_task(watch())
        async with Sandbox(LIMITS, workers=2, sessions=places, isolation=box.sandbox.isolation) as sandbox:
            try:
                return await asyncio.gather(*(episode(sandbox, number) for number in range(episodes)))
            finally:
                watching.cancel()

    before = len(descendants(os.getpid()))
    answers = box.do(play())
    assert [value for _, value in answers] == [f"({number + 1}, '{number}')" for number in range(episodes)]
    # The launcher, the keeper and the program: three for each place.
    assert 0 < most <= 3 * places


def test_a_session_without_a_place_waits_for_one_that_cannot_be_parked(box: Box):
    async def answer(text: str) -> str:
        return text

    async def play() -> tuple[bool, str | None, str | None]:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first = sandbox.session()
            await first.run("x = ask('told')", answer=answer)
            second = asyncio.create_task(sandbox.session().run("2"))
            await asyncio.sleep(0.5)
            waited, value = not second.done(), (await first.run("x")).value
            await first.close()
            return waited, value, (await second).value

    assert box.do(play()) == (True, "'told'", "2")


def test_a_session_that_cannot_be_run_again_is_ended_for_another_and_told(box: Box, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bough.sandbox.pool.REPLAY_S", 0.1)
    monkeypatch.setattr("bough.sandbox.pool.IDLE_S", 0.1)

    async def play() -> list[Result]:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first, second = sandbox.session(), sandbox.session()
            await first.run("import time\nx = 1\ntime.sleep(0.2)")
            other = await second.run("2")
            monkeypatch.setattr("bough.sandbox.pool.REPLAY_S", 60)  # the second one's cell is quick on any machine
            results = [other, await first.run("x"), await first.run("'x' in globals()")]
            await first.close()
            return [*results, await second.run("_")]

    other, told, after, resumed = box.do(play())
    assert other.value == "2" and resumed.value == "2"
    assert told.killed == "idle" and not told.alive and told.value is None
    assert after.value == "False"


def test_a_session_whose_cell_was_killed_gives_its_place_away(box: Box):
    async def play() -> str | None:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first = sandbox.session()
            assert "exited" in str((await first.run("import os\nos._exit(1)")).error)
            return (await sandbox.session().run("2")).value

    assert box.do(play()) == "2"


def test_a_parked_session_that_is_closed_is_forgotten(box: Box):
    async def play() -> list[str | None]:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first, second = sandbox.session(), sandbox.session()
            await first.run("x = 1")
            await second.run("y = 1")
            values = [(await first.run("x")).value, (await second.run("y")).value]
            await first.close()
            values.append((await first.run("'x' in globals()")).value)
            return values

    assert box.do(play()) == ["1", "1", "False"]


def test_waiting_for_a_place_ends_with_the_wait(box: Box):
    async def play() -> str | None:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            async with sandbox.session():
                begin = time.monotonic()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await sandbox.session().run("1")
                assert time.monotonic() - begin < 30
            return (await sandbox.session().run("3")).value

    assert box.do(play()) == "3"


def test_by_default_sessions_fit_into_the_memory_of_the_machine(box: Box):
    async def made(memory_mb: int) -> int:
        return Sandbox(replace(LIMITS, memory_mb=memory_mb), isolation=box.sandbox.isolation).sessions

    total_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    assert box.do(made(1 << 40)) == 4
    assert box.do(made(total_mb // 8)) * (total_mb // 8) <= total_mb
