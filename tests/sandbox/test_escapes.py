"""Programs that mean harm: each is contained, the next program runs, and the host is as it was."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bough.sandbox.base import SandboxLimits
from bough.sandbox.inside.kernel import descendants
from bough.sandbox.pool import Sandbox
from tests.sandbox.conftest import LIMITS, Box

SYSTEM_CALL = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
def system_call(number, *arguments):
    if libc.syscall(number, *arguments) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""
ARM = os.uname().machine == "aarch64"
pytestmark = pytest.mark.usefixtures("works_afterwards")


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "while True:\n    pass",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["a fork bomb", "an infinite loop", "it stops itself"],
)
def test_whatever_goes_on_ends_with_its_time(box: Box, code: str):
    result = box.run(f"import os, signal\n{code}", timeout_s=0.5)
    assert result.killed == "time" and result.timed_out


def test_processes_and_threads_are_counted(box: Box):
    result = box.run(
        "import os, time\nchildren = 0\ntry:\n    while children < 1000:\n        if os.fork() == 0:\n"
        "            time.sleep(60)\n            os._exit(0)\n        children += 1\n"
        "except OSError:\n    pass\nchildren"
    )
    # The program itself is one; an ordinary user's launcher counts too.
    assert int(result.value or 0) in (LIMITS.processes - 1, LIMITS.processes - 2)
    result = box.run(
        "import threading, time\nfor _ in range(1000):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    assert result.error is not None and "can't start new thread" in result.error


def test_a_memory_bomb_gets_a_memory_error(box: Box):
    result = box.run("data = []\nwhile True:\n    data.append(bytearray(10_000_000))")
    assert result.error is not None and result.error.endswith("MemoryError")


def test_a_memory_bomb_of_many_processes_is_killed(box: Box):
    result = box.run(
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        data = bytearray(150_000_000)\n"
        "        time.sleep(60)\ntime.sleep(60)",
        timeout_s=20,
    )
    assert result.killed == "memory" and not result.timed_out


def test_processor_time_is_counted(box: Box):
    async def burn() -> object:
        async with Sandbox(
            SandboxLimits(timeout_s=60, cpu_s=0.1), workers=1, isolation=box.sandbox.isolation
        ) as sandbox:
            return await sandbox.run("while True:\n    pass")

    result = box.do(burn())
    assert result.killed == "cpu" and not result.timed_out


def test_files_of_the_host_are_not_there(box: Box, tmp_path: Path):
    canary = tmp_path / "canary"
    canary.write_text("canary")
    hidden = [canary, Path(__file__), Path.home() / ".ssh", Path("/etc/passwd"), Path("/etc/shadow"), Path("/var")]
    hidden += [Path("/proc/1/environ"), Path("/proc/self/root/etc/passwd"), Path("/sys/class"), Path("/bin/sh")]
    hidden += [Path("/run"), Path("/dev/mem"), Path("/dev/kmsg"), Path("/dev/tty"), Path("/dev/fd/0")]
    code = f"import os\n[path for path in {[str(path) for path in hidden]} if os.path.lexists(path)]"
    assert box.run(code).value == "[]"
    # What is left to look at, apart from the libraries and the Python installation.
    libraries = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib")
    found = box.run(
        f"import os, sys\nshown = (*{libraries}, sys.base_prefix)\nfiles = []\n"
        "for folder, folders, names in os.walk('/'):\n"
        "    folders[:] = [name for name in folders if os.path.join(folder, name) not in shown"
        " and name != 'site-packages']\n"
        "    files += [os.path.join(folder, name) for name in names]\nfiles"
    )
    assert not [
        path
        for path in eval(found.value or "")
        if not path.startswith(("/bough/bough/sandbox/inside/", "/dev/", "/etc/ld.so.cache", "/usr/bin/python"))
    ]


def test_links_lead_nowhere_either(box: Box, tmp_path: Path):
    (tmp_path / "canary").write_text("canary")
    for target in (str(tmp_path / "canary"), "/proc/1/root/etc/passwd", "../../../../../../etc/passwd"):
        result = box.run(f"import os\nos.symlink({target!r}, '/tmp/link')\nopen('/tmp/link').read()")
        assert result.error is not None and "FileNotFoundError" in result.error
    result = box.run(f"import os\nos.link({str(tmp_path / 'canary')!r}, '/tmp/link')")
    assert result.error is not None and "FileNotFoundError" in result.error


def test_a_link_that_is_left_behind_is_not_followed_by_the_cleaning(box: Box):
    box.run("import os\nos.symlink('/bough', '/tmp/link')\nos.makedirs('/tmp/a/b')\nos.symlink('/', '/tmp/a/b/root')")
    assert box.run("import os\nos.path.isfile('/bough/bough/sandbox/inside/keeper.py')").value == "True"


def test_keys_in_the_environment_are_not_seen(box: Box, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary-in-the-environment")

    async def look() -> object:
        async with Sandbox(LIMITS, workers=1, isolation=box.sandbox.isolation) as sandbox:
            return await sandbox.run("import os\nprint(dict(os.environ))\nsorted(os.environ)")

    result = box.do(look())
    assert "canary" not in result.stdout and "'HOME'" in result.value and "KEY" not in result.value


def test_no_socket_can_be_made(box: Box):
    result = box.run(
        "import itertools, socket\nrefused = []\n"
        "families = ('INET', 'INET6', 'UNIX', 'NETLINK', 'PACKET', 'ALG', 'VSOCK')\n"
        "for family, kind in itertools.product(families, ('STREAM', 'DGRAM', 'RAW', 'SEQPACKET')):\n    try:\n"
        "        socket.socket(getattr(socket, 'AF_' + family), getattr(socket, 'SOCK_' + kind))\n"
        "    except PermissionError:\n        refused.append((family, kind))\nlen(refused)"
    )
    assert result.value == "28"


def test_nobody_on_the_host_is_called(box: Box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        result = box.run(f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)")
        assert result.error is not None
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_pair_of_sockets_to_oneself_is_allowed_as_asyncio_needs_it(box: Box):
    assert box.run("import asyncio\nawait asyncio.sleep(0, 'done')").value == "'done'"


def test_the_keeper_survives_every_signal(box: Box):
    box.run("1")
    before = box.pid
    result = box.run(
        "import os, signal\nassert os.getppid() == 1\n"
        "for number in sorted(signal.valid_signals()):\n    os.kill(1, number)"
    )
    assert result.ok, result
    assert box.run("2").value == "2" and box.pid == before


def test_killing_everybody_in_sight_kills_the_program_alone(box: Box):
    box.run("1")
    before = box.pid
    result = box.run(
        "import os, signal\ntry:\n    os.kill(-1, signal.SIGKILL)\nexcept ProcessLookupError:\n    pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert result.error == "The process was killed by SIGKILL."
    assert box.run("2").value == "2" and box.pid == before


def test_processes_of_the_host_and_of_other_sandboxes_cannot_be_named(box: Box):
    async def attack() -> tuple[object, object]:
        async with Sandbox(LIMITS, workers=1, isolation=box.sandbox.isolation) as victim, victim.session() as session:
            await session.run("x = 'alive'")
            (worker,) = victim._busy
            assert worker.pid is not None
            pids = [bystander.pid, os.getpid(), worker.pid, *descendants(worker.pid)]
            code = (
                "import os\ndef hit(pid):\n    try:\n        os.kill(pid, 9)\n    except OSError as error:\n"
                f"        return type(error).__name__\n[hit(pid) for pid in {pids} if pid > 50]"
            )
            return await box.sandbox.run(code), await session.run("x")

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        hits, alive = box.do(attack())
        assert set(eval(hits.value)) == {"ProcessLookupError"}
        assert alive.value == "'alive'" and bystander.poll() is None
        bystander.communicate(b"\n")
        assert bystander.returncode == 0


CALLS = [  # x86_64, aarch64, arguments
    ("ptrace", 101, 117, "16, 1, 0, 0"),
    ("process_vm_readv", 310, 270, "1, 0, 0, 0, 0, 0"),
    ("mount", 165, 40, "b'none', b'/tmp', b'tmpfs', 0, 0"),
    ("mount of proc", 165, 40, "b'proc', b'/tmp', b'proc', 0, 0"),
    ("umount2", 166, 39, "b'/tmp', 2"),
    ("pivot_root", 155, 41, "b'.', b'.'"),
    ("chroot", 161, 51, "b'/tmp'"),
    ("unshare users", 272, 97, str(0x1000_0000)),
    ("setns", 308, 268, "3, 0"),
    ("clone into new users", 56, 220, f"{0x1000_0000 | 17}, 0, 0, 0, 0"),
    ("open_by_handle_at", 304, 265, "3, 0, 0"),
    ("pidfd_open", 434, 434, "1, 0"),
    ("pidfd_getfd", 438, 438, "3, 3, 0"),
    ("io_uring_setup", 425, 425, "8, 0"),
    ("bpf", 321, 280, "0, 0, 0"),
    ("keyctl", 250, 219, "0, 0"),
    ("reboot", 169, 142, "0, 0, 0, 0"),
    ("shmget", 29, 194, "0, 1 << 20, 0o1600"),
    ("prlimit64 of the keeper", 302, 261, "1, 7, 0, 0"),
    ("sched_setaffinity of the keeper", 203, 122, "1, 8, b'\\1\\0\\0\\0\\0\\0\\0\\0'"),
    ("setpriority", 141, 140, "0, 1, 19"),
]


def test_the_kernel_refuses_what_no_program_needs(box: Box):
    attempts = "\n".join(
        f"    {name!r}: lambda: system_call({arm if ARM else x86}, {arguments})," for name, x86, arm, arguments in CALLS
    )
    result = box.run(
        f"{SYSTEM_CALL}\ngranted = []\nattempts = {{\n{attempts}\n}}\nfor name, attempt in attempts.items():\n"
        "    try:\n        granted.append((name, attempt()))\n    except OSError as error:\n"
        "        if error.errno != 1:\n            granted.append((name, error))\ngranted"
    )
    assert result.value == "[]", result


def test_nobody_becomes_root(box: Box):
    for attempt in ("setuid(0)", "setgid(0)", "setgroups([0])", "setresuid(0, 0, 0)"):
        result = box.run(f"import os\nos.{attempt}")
        assert result.error is not None and ("Permission" in result.error or "Invalid argument" in result.error)
    assert box.run("import os\nos.getuid() != 0 and os.geteuid() != 0").value == "True"


def test_what_is_shown_cannot_be_changed(box: Box):
    for target in ("os.__file__", "'/bough/bough/sandbox/inside/keeper.py'", "'/new'", "'/dev/new'", "'/usr/lib/new'"):
        result = box.run(f"import os\nopen({target}, 'a')")
        assert result.error is not None and ("Read-only" in result.error or "Permission" in result.error), target


def test_daemons_end_with_the_program(box: Box):
    result = box.run(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        for _ in range(600):\n            time.sleep(0.1)\n            open('/tmp/alive', 'a').write('x')\n"
        "    os._exit(0)\nos.wait()\n'left'"
    )
    assert result.value == "'left'" and not result.timed_out


def test_zombies_and_stopped_processes_are_cleared_away(box: Box):
    result = box.run(
        "import os, signal\nfor _ in range(10):\n    if os.fork() == 0:\n        os._exit(0)\n"
        "if os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)\nprint('made')"
    )
    assert result.stdout == "made\n"


def test_the_disk_is_small_and_clean_for_the_next(box: Box):
    fill = (
        "written = 0\ntry:\n    for i in range(100):\n        with open(f'{folder}/{i}', 'wb', 0) as file:\n"
        "            while True:\n                written += file.write(b'x' * 65536)\n"
        "except OSError as error:\n    print(error.strerror)\nwritten"
    )
    for folder in ("/tmp", "/dev/shm"):
        result = box.run(f"folder = {folder!r}\n{fill}")
        assert int(result.value or 0) <= LIMITS.disk_mb << 20
        assert result.stdout in ("No space left on device\n", "File too large\n")


def test_a_folder_too_deep_to_clean_costs_the_keeper_its_place(box: Box):
    box.run("1")
    before = box.pid
    box.run("import os\nfor _ in range(5000):\n    os.mkdir('d')\n    os.chdir('d')")
    assert box.run("import os\nos.listdir('/tmp')").value == "[]"
    # From Python 3.13 on, the depth that can be removed is limited by the number of open files alone.
    assert box.pid != before or sys.version_info >= (3, 13)


def test_a_folder_that_forbids_its_cleaning_is_gone_too(box: Box):
    box.run("import os\nos.makedirs('/tmp/a/b')\nos.chmod('/tmp/a', 0)")
    assert box.run("import os\nos.listdir('/tmp')").value == "[]"


def test_one_program_finds_nothing_of_the_one_before(box: Box):
    box.run("secret = 'canary-of-the-first-program'")
    result = box.run(
        "import gc, sys\nframe, seen = sys._getframe(), []\nwhile frame:\n    seen.append(repr(frame.f_locals))\n"
        "    frame = frame.f_back\nseen += [repr(thing) for thing in gc.get_objects() if isinstance(thing, dict)]\n"
        "'canary-of-' + 'the-first' in ''.join(seen)"
    )
    assert result.value == "False"
