"""The interface of a sandbox: limits, results, sessions, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from bough.errors import BoughError, InputError

# How the host answers a question that a program asks while it runs.
Answer = Callable[[str], Awaitable[str]]
Killed = Literal["time", "cpu", "memory", "garbage"]


class SandboxError(BoughError):
    """There is no working sandbox; the program is not at fault."""


class BrokenError(SandboxError):
    """The sandbox broke while a program ran in it, possibly because of the program."""


class NoSandboxError(InputError):
    """This machine offers no isolation and the user did not allow running without it. A retry will not help."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What one program may use.

    `memory_mb` limits the address space of each process and the memory of all its
    processes together, also between the cells of a session. `disk_mb` limits each of the
    two scratch folders (`/tmp`, `/dev/shm`) and any one file in them. `output_bytes` is how
    much is kept of each of stdout, stderr, the value and the traceback, head and tail.
    """

    timeout_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 1024
    processes: int = 32
    disk_mb: int = 64
    output_bytes: int = 16_384


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one program or cell.

    `value` is the repr of a last expression, as a notebook shows it, `error` the traceback.
    `killed` says which limit ended the program. A cell that ran out of time but could be
    interrupted has `timed_out`, and its session continues. `alive` is whether the session
    still has its names.
    """

    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    error: str | None = None
    timed_out: bool = False
    killed: Killed | None = None
    truncated: bool = False
    alive: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None and self.killed is None and not self.timed_out
