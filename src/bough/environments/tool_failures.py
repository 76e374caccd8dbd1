"""A tool that raised: whose failure it is, and what the agent and the author read of it.

Agents write odd but valid arguments, and tools raise on them: `int("five")`, a missing key,
a division by 0. That is the agent's failure: it reads the error, and the episode continues.
A network or a disk that fails is not; the episode is lost and played again. A time-out may
have any cause: the agent reads it and continues, and the action counts as valid. A MemoryError is
the agent's: `" " * n` raises it for a large n, and the agent must gain nothing by that.

The same exception may be a bug of the author, which must not be hidden: it is logged with
file and line the first time, counted in each trajectory, and `bough env check` reports it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bough.errors import BoughError, describe_failure, exception_line, innermost_place, type_name

log = logging.getLogger(__name__)
# Characters of an exception that the agent reads.
MAX_MESSAGE = 500
INFRASTRUCTURE = (OSError, ImportError, BoughError)
# Of these errors of the system the agent is the cause: it named the path, or the position in a file.
PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
PATH_ERRNOS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
# Where an observation's info has the facts of what was raised.
RAISED = "raised"
# Places that are in the log already. An agent whose programs define exceptions could make any number of them.
MAX_LOGGED = 100
_logged: set[str] = set()


@dataclass(frozen=True)
class Raised:
    """`place` says what raised where, without the message; `failure` has message and frames."""

    place: str
    failure: str


class ToolError(Exception):
    """Raised in a tool: the call cannot be carried out. The agent reads the message; the action counts as invalid."""

    word: str | None = "invalid_action"

    @property
    def facts(self) -> list[Raised]:
        """What the author should know; nothing where the tool meant to refuse the call."""
        return []


class ToolTimeoutError(ToolError):
    """A tool took too long. Whose failure that is cannot be known, so it is not counted as the agent's."""

    word = None


class ToolRaisedError(ToolError):
    """A tool raised an exception that the agent's arguments caused."""

    word = "tool_raised"

    def __init__(self, what: str, error: BaseException) -> None:
        place = innermost_place(error)
        where = f"{what} raised {type_name(error)}" + (f" ({place})" if place else "")
        self.raised = Raised(where, describe_failure(what, error))
        super().__init__(f"{what} raised {exception_line(error, MAX_MESSAGE)}")

    @property
    def facts(self) -> list[Raised]:
        return [self.raised]

    def log_once(self) -> None:
        """Tells the author, once per place."""
        if self.raised.place not in _logged and len(_logged) < MAX_LOGGED:
            _logged.add(self.raised.place)
            log.warning("%s\n  The agent is told, and the episode continues. This is logged once.", self.raised.failure)


def raised_in(info: Any) -> list[Raised]:
    """What tools raised in the turn of an observation with this info."""
    found = info.get(RAISED) if isinstance(info, Mapping) else None
    return [one for one in found if isinstance(one, Raised)] if isinstance(found, list) else []


@contextmanager
def attributed(what: str) -> Iterator[None]:
    """Turns what the agent's arguments make `what` raise into a ToolRaisedError, a time-out into a ToolTimeoutError."""
    try:
        yield
    except (ToolError, BoughError):
        raise
    except (Exception, SystemExit) as error:  # argparse and programs that a tool runs exit
        if any(isinstance(one, TimeoutError) for one in _chain(error)):
            raise ToolTimeoutError(f"{what} raised {exception_line(error, MAX_MESSAGE)}") from error
        if isinstance(error, AbandonedError) or is_infrastructure(error):
            raise
        raised = ToolRaisedError(what, error)
        raised.log_once()
        raise raised from error


class AbandonedError(SystemExit):
    """Ends a thread that does not respond. Tools must not take it for an exit of theirs."""


def is_infrastructure(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, says nothing about the agent."""
    return any(isinstance(one, INFRASTRUCTURE) and not _names_a_path(one) for one in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, those that it was raised from, and those that they are groups of.

    HTTP clients wrap the system's errors in their own.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            for one in current.exceptions:
                yield from _chain(one)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _names_a_path(error: BaseException) -> bool:
    return isinstance(error, PATH_ERRORS) or (isinstance(error, OSError) and error.errno in PATH_ERRNOS)
