"""Errors: the user's input was wrong (exit 2), or the work failed (exit 1)."""

from __future__ import annotations

import difflib
import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

# Words that a message lists; of more than that only the nearest.
MAX_LISTED, NEAREST = 12, 3
# Frames of user code that an error shows, innermost last.
MAX_FRAMES = 5
MAX_DEPTH = 1000
# An exception may carry a whole web page; its text is kept in records.
MAX_MESSAGE = 2000
MAX_NAME = 80
OURS = str(Path(__file__).parent) + os.sep
PACKAGES = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


class BoughError(Exception):
    """The work failed. The message tells the user what to do."""

    exit_code = 1


class InputError(BoughError, ValueError):
    """The user's input was wrong: where, what, what is allowed, with all problems together."""

    exit_code = 2

    def __init__(self, message: str, problems: Iterable[str] = (), *, hint: str = "") -> None:
        self.message, self.problems = message, list(problems)
        lines = [message, *(f"  - {problem}" for problem in self.problems), *([hint] if hint else [])]
        super().__init__("\n".join(lines))


class RowError(ValueError):
    """One row of a data file is bad. `reason` is a short fixed word to count rows by."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str]]:
        return type(self), (self.reason, str(self))


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """The end of a message: "; did you mean X?", or the allowed words if none is close (of many, the nearest).

    Initials count as close: lr is learning_rate.
    """
    allowed = list(allowed)
    plain = {_plain(one): one for one in reversed(allowed)}
    close = difflib.get_close_matches(_plain(word), plain, n=1)
    close = close or [one for one in map(_plain, allowed) if _plain(word) == "".join(p[:1] for p in one.split("_"))]
    if close:
        return f"; did you mean {' or '.join(plain[one] for one in close)}?"
    if len(allowed) > MAX_LISTED:
        nearest = difflib.get_close_matches(_plain(word), plain, n=NEAREST, cutoff=0.0)
        return f"; the nearest are {', '.join(plain[one] for one in nearest)}"
    return f"; allowed: {', '.join(allowed)}" if allowed else ""


def _plain(word: str) -> str:
    """A word without the dashes of a flag, which would make all short flags look alike."""
    return word.lstrip("-").replace("-", "_")


class RewardRangeError(BoughError):
    """A reward is outside its declared range. The run stops, because nothing should be trained on it."""

    def __init__(self, who: str, task: str, value: float, declared: tuple[float, float]) -> None:
        low, high = declared
        super().__init__(f"{who} gave the reward {value:g} for task {task}; its declared range is {low:g} to {high:g}")


def describe_failure(what: str, error: BaseException) -> str:
    """What `what`, code that is not Bough's, raised: the error, then the author's own frames with file and line.

    Files are named relative to the working directory or by their last two parts: the text is also kept in records.
    """
    return with_frames(f"{what} raised {exception_line(error)}", error)


def with_frames(text: str, error: BaseException) -> str:
    """A text with the place in the author's code that raised `error`, and the author's frames below it."""
    frames = _author_frames(error)[-MAX_FRAMES:]
    place = f" ({short_path(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    lines = [f"  {short_path(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    return "\n".join([f"{text}{place}", *lines])


def innermost_place(error: BaseException) -> str | None:
    """File and line in the author's code where an exception was raised; None where no frame is the author's."""
    frames = _author_frames(error)
    return f"{short_path(frames[-1].filename)}:{frames[-1].lineno}" if frames else None


def exception_line(error: BaseException, max_length: int = MAX_MESSAGE) -> str:
    """The type of an exception and its text."""
    message = exception_text(error, max_length)
    return f"{type_name(error)}: {message}" if message else type_name(error)


def first_line(error: BaseException) -> str:
    """The first line of what an exception says; never empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def type_name(error: BaseException) -> str:
    """The name of an exception's type, cut where it is long: programs of agents define their own."""
    return type(error).__name__[:MAX_NAME]


def exception_text(error: BaseException, max_length: int = MAX_MESSAGE) -> str:
    """The text of an exception, cut where it is long. Writing it runs the author's code, which may fail again."""
    try:
        text = str(error)
    except BaseException as failure:  # also an exit: it is the author's, and must not become ours
        return f"its message cannot be shown: __str__ raised {type(failure).__name__}"
    shown = text if len(text) <= max_length else f"{text[:max_length]} … ({len(text):,} characters)"
    return shown.encode(errors="replace").decode()  # half a surrogate pair can be written to no log and no file


def _author_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the user's files; where there are none, of installed packages, or of Bough's own environments."""
    # Of an endless recursion the innermost frames are enough.
    found = traceback.extract_tb(error.__traceback__, limit=-MAX_DEPTH)
    frames = [frame for frame in found if not frame.filename.startswith("<")]
    installed = [frame for frame in frames if frame.filename.startswith(PACKAGES)]
    outside = (OURS, STANDARD_LIBRARY, *PACKAGES)
    users = [frame for frame in frames if not frame.filename.startswith(outside)]
    worlds = [frame for frame in frames if frame.filename.startswith(f"{OURS}worlds{os.sep}")]
    shown = users or [frame for frame in installed if not frame.filename.startswith(OURS)] or worlds
    # Python itself raises some exceptions from the author's, such as RuntimeError from StopIteration; a time limit's
    # comes from the author's only in newer versions, and after it in all.
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return shown or (_author_frames(earlier) if earlier is not None else [])


def short_path(file: str | os.PathLike[str]) -> str:
    """A path as messages and records show it: relative to the working directory, or its last two parts."""
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the working directory was removed
        return str(Path(*path.parts[-2:])) if path.is_absolute() else str(file)


def short_repr(value: object) -> str:
    """A value from an author's code as messages show it. Its `__repr__` may fail; that of a huge integer does."""
    try:
        return f"{value!r:.100}"
    except BaseException:  # as above
        return f"an object of type {type(value).__name__}"
