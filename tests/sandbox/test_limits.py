"""Programs that try to hold more than they may, where nobody looks."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from bough.sandbox.base import Result
from bough.sandbox.inside.keeper import STOP_AGAIN_S
from bough.sandbox.inside.kernel import descendants
from bough.sandbox.inside.launch import INODES
from tests.sandbox.conftest import Box

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


@pytest.mark.parametrize(
    "code",
    [
        "import socket\nsocket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)",
        "os.memfd_create('x')",
        "checked(libc.inotify_init1(0))",
        "checked(libc.timer_create(1, None, ctypes.create_string_buffer(64)))",
        "import mmap\nmmap.mmap(-1, 1 << 20)",
        "import mmap\nmmap.mmap(-1, 1 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)",
        "import mmap\nmmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20, flags=mmap.MAP_SHARED)",
        "checked(libc.syscall(278 if not ARM else 75, 1, 0, 0, 0))  # vmsplice",
        "checked(libc.syscall(275 if not ARM else 76, 1, 0, 1, 0, 1, 0))  # splice",
    ],
)
def test_memory_of_no_process_watches_and_timers_cannot_be_had(box: Box, code: str):
    prelude = (
        "import ctypes, os, platform\nARM = platform.machine() == 'aarch64'\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def checked(result):\n    if result == -1:\n"
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
