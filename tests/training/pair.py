"""Two processes that train together, and one that trains alone: what tests compare."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.cli import main
from bough.config.run_folder import MetricsFile
from tests.warm import Warm


def cpu_environment() -> dict[str, str]:
    """The environment of programs that train on the CPU with one thread.

    As it is now: conftest.py imports this file before the warm server has an address.
    """
    return os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}


class Pair:
    """Two processes at a time: see two_processes.py."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.txt"
        self.server = Warm("tests.training.two_processes", environment=cpu_environment())

    def start(
        self,
        arguments: list[str],
        wait_after: int | None = None,
        *,
        wait: bool = False,
        interrupted: tuple[int, int] | None = None,
        spoiled: tuple[int, int] | None = None,
        short: tuple[int, bool] | None = None,
    ) -> list[int]:
        """Their ids. They wait to be killed after `wait_after` steps; a rank may be `interrupted` in a step.

        A rank's loss may be `spoiled` in a step: infinite, with a finite gradient. One may be `short` of memory
        once, in its first pass with or without a gradient.

        Where one fails the other is killed, as `torchrun` does, or with `wait` ends by itself.
        """
        self.log.unlink(missing_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        wanted = {"arguments": arguments, "port": port, "log": str(self.log), "wait_after": wait_after, "wait": wait}
        self._send(json.dumps(wanted | {"interrupted": interrupted, "spoiled": spoiled, "short": short}))
        return [int(child) for child in self._answer().split()]

    def finish(self) -> int:
        """The exit code, when both have ended."""
        return int(self._answer())

    def run(self, arguments: list[str]) -> str:
        """Runs a command and returns what it said."""
        self.start(arguments)
        code = self.finish()
        said = self.log.read_text()
        assert code == 0, f"exit code {code}: {said[-3000:]}"
        return said

    def close(self) -> None:
        self.server.communicate()

    def _send(self, line: str) -> None:
        self.server.stdin.write(line + "\n")
        self.server.stdin.flush()

    def _answer(self) -> str:
        return self.server.stdout.readline()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("two"))
    yield pair
    pair.close()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def alone(arguments: list[str], run: Path) -> None:
    assert main([*arguments, "--output-dir", str(run)]) == 0


def told(run: Path, name: str) -> list[Any]:
    return [line[name] for line in MetricsFile.read(run / "metrics.jsonl") if name in line]
