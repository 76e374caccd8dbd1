"""What a sandbox is asked for and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from bough.errors import BoughError, InputError

# What the host says to a program that asks something in the middle of its run.
Answer = Callable[[str], Awaitable[str]]
Killed = Literal["time", "cpu", "memory", "garbage", "idle"]


class SandboxError(BoughError):
    """The sandbox cannot be had: no fault of the program's."""


class BrokenError(SandboxError):
    """The sandbox broke while a program ran in it, which may well be the program's doing."""


class NoSandboxError(InputError):
    """There are no walls to be had here, and nobody allowed to go without: trying again will not help."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What one program may use.

    `memory_mb` bounds each process's address space and what all its processes hold
    together, during the cells of a session and between them. `disk_mb` bounds each of the
    two scratch folders (`/tmp`, `/dev/shm`) and any one file in them. Of stdout,
    stderr, the value and the traceback `output_bytes` are kept each, head and tail.
    """

    timeout_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 1024
    processes: int = 32
    disk_mb: int = 64
    output_bytes: int = 16_384


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one program or cell.

    `value` is the repr of a last expression, as a notebook echoes it, `error` a traceback
    as its reader would see it. `killed` says which limit ended the program (`idle`: its
    session was ended for another's sake, and it was not run); a cell that
    ran out of time but could be interrupted has `timed_out` and lives on. `alive` is
    whether the session still has its names.
    """

    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    error: str | None = None
    timed_out: bool = False
    killed: Killed | None = None
    truncated: bool = False
    alive: bool = False
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None and self.killed is None and not self.timed_out


class Session(Protocol):
    """Cells that share their names. Use it with `async with`.

    Between two cells everything the session has started is stopped; it goes on with the next.
    """

    async def __aenter__(self) -> Session: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a cell. After `killed`, the next cell starts with no names.

        A session that was found to hold too much between two cells answers the second with
        `killed`, and does not run it.

        With `answer` the cell finds a function `ask`, which gives `answer` a text and
        returns what it says.
        """


class ProgramRunner(Protocol):
    """Something that runs programs."""

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a program in a process of its own, which can `ask` as a session's cells can."""

    def session(self) -> Session:
        """A fresh session."""

    async def close(self) -> None:
        """Ends everything."""
