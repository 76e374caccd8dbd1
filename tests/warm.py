"""Processes that start warm, for tests that need a process of their own but not a fresh one.

Loading torch, transformers and Bough takes seven CPU-seconds. `Warm` forks a program from a
process that has loaded them once for all tests: `pytest` starts it (see conftest.py), and it
loads when the first program is asked for, or before (see forked.py). A program sees no GPU, and
variables that a package reads when it is imported (HF_HOME) have no effect.

    python tests/warm.py [-u] -m MODULE [ARGUMENTS]
    python tests/warm.py [-u] -c CODE [ARGUMENTS]

does what Python does with these arguments, but in such a process.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Self

ROOT = Path(__file__).parents[1]
ADDRESS = "BOUGH_TESTS_WARM"


def start_server(collect: Sequence[str] = ()) -> Callable[[], None]:
    """Starts the process that programs are forked from, for this process and its children; returns what ends it.

    It also imports the tests in `collect`.
    """
    folder = tempfile.TemporaryDirectory(prefix="bough-tests-")
    address = os.environ[ADDRESS] = str(Path(folder.name) / "socket")
    # No threads: a fork loses them, and what they have locked stays locked.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)  # from now on requests wait until it has loaded
        command = [sys.executable, "-m", "tests.warm_server", str(listener.fileno()), *collect]
        server = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        server.communicate()
        folder.cleanup()

    return end


def ask(streams: Sequence[int], **wanted: object) -> socket.socket:
    """Asks the server for a program with these standard streams; its id and its exit code come as lines."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[ADDRESS])
    socket.send_fds(connection, [b"."], streams)
    connection.sendall(json.dumps(wanted).encode() + b"\n")
    return connection


class Warm:
    """A forked program. Its standard input and output are pipes; its standard error goes to `errors` or nowhere."""

    def __init__(
        self,
        module: str | None,
        *arguments: str,
        code: str | None = None,
        folder: Path = ROOT,
        environment: dict[str, str] | None = None,
        errors: IO[bytes] | None = None,
    ) -> None:
        self._returncode: int | None = None
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        theirs_err = os.dup(errors.fileno()) if errors else os.open(os.devnull, os.O_WRONLY)
        self._connection = ask(
            [theirs_in, theirs_out, theirs_err],
            module=module, code=code, arguments=arguments, folder=str(folder),
            environment=dict(os.environ if environment is None else environment),
        )  # fmt: skip
        for theirs in (theirs_in, theirs_out, theirs_err):
            os.close(theirs)
        self.stdin, self.stdout = os.fdopen(ours_in, "w"), os.fdopen(ours_out)
        self._answers = self._connection.makefile("rb", buffering=0)  # so that select sees what is left to read
        self.pid = int(self._answers.readline())

    def wait(self) -> int:
        """The exit code; minus the signal's number where one ended it."""
        if self._returncode is None:
            self._returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self._returncode

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self._returncode is None and not select.select([self._connection], [], [], 0)[0]:
            return None
        return self.wait()

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self) -> str:
        """What it prints until it ends; its standard input ends now."""
        self.stdin.close()
        said = "" if self.stdout.closed else self.stdout.read()
        self.stdout.close()
        self.wait()
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self.kill()
        self.communicate()


def main(words: list[str]) -> int:
    """Runs a module or code with this process's standard streams, folder and environment."""
    option, name, *arguments = words[1:] if words[0] == "-u" else words
    wanted = {"module": name if option == "-m" else None, "code": name if option == "-c" else None}
    connection = ask(
        [0, 1, 2], **wanted, arguments=arguments, folder=str(Path.cwd()), environment=dict(os.environ)
    )  # fmt: skip
    with connection.makefile() as answers:
        _, exit_code = int(answers.readline()), int(answers.readline())
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
