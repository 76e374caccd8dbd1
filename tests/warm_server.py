"""A program: forks programs from a process that has loaded torch, transformers and Bough.

    python -m tests.warm_server SOCKET [TESTS ...]

SOCKET is the number of an open Unix socket that listens. The server loads everything at the
first request; with TESTS it begins immediately and loads their modules too. It ends when its
standard input does. A request is one byte with the program's standard input, output and error
attached, then a line of JSON: a `module` or `code`, `arguments`, `folder` and `environment`, as
`tests.warm` sends it. The answers are the program's id, and its exit code when it has ended.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress


def serve(listener: socket.socket, tests: list[str]) -> None:
    _leave_interrupts_to_programs()
    supervisors: list[int] = []
    if tests:  # processes that run them will be asked for
        load(tests)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        # Also at the end, so that their CPU time is counted.
        supervisors = [one for one in supervisors if os.waitpid(one, os.WNOHANG) == (0, 0)]
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if "tests.loaded" not in sys.modules:
            load(tests)
        supervisor = os.fork()
        if supervisor == 0:
            listener.close()
            supervise(connection)
            os._exit(0)
        supervisors.append(supervisor)
        connection.close()


def load(tests: list[str]) -> None:
    from tests import versions

    versions.remember()  # before Bough is imported
    from tests.loaded import load_everything, load_tests

    gc.disable()  # what is loaded stays
    load_everything()
    if tests:
        load_tests(tests)
        _leave_interrupts_to_programs()
    gc.freeze()  # a program's garbage collector leaves alone, and so does not copy, what is loaded
    gc.enable()


def _leave_interrupts_to_programs() -> None:
    """A terminal interrupts all processes: those that asked decide what becomes of their programs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def supervise(connection: socket.socket) -> None:
    """Starts the program that is asked for and reports its end."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as lines:
        wanted = json.loads(lines.readline())
    program = os.fork()
    if program == 0:
        connection.close()
        os._exit(become(streams, **wanted))
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{program}\n".encode())
    _, status = os.waitpid(program, 0)
    with suppress(BrokenPipeError):  # the one that asked was killed
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(
    streams: list[int],
    module: str | None,
    code: str | None,
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
) -> int:
    """Does in this process what `python -m module` or `python -c code` does; the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # The server's own are of another kind, such as files that can be sought in.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, folder)
    sys.argv = [module or "-c", *arguments]
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            exec(compile(code or "", "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
