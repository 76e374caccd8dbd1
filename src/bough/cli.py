"""The command line: `bough COMMAND …`. A command is a Config and a function, imported when it is used.

Exit codes: 0 done, 1 the work failed, 2 the user's input was wrong, 130 interrupted, by Ctrl-C, SIGTERM or SIGHUP.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from io import TextIOWrapper

from bough import bit_exact
from bough.commands import table
from bough.errors import BoughError, InputError, did_you_mean
from bough.event_loop import sigterm_interrupts
from bough.files import FOLLOW_LINKS

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    bit_exact.prepare()  # before a command loads torch
    # Threads that wait by spinning make torch several times slower on a CPU that has anything else to do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in arguments
    follow_links = "--follow-links" in arguments
    arguments = [word for word in arguments if word not in ("--debug", "--follow-links")]
    for stream in (sys.stdout, sys.stderr):
        # A terminal without "…", or a file name that is not text: print an escape instead of failing.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with sigterm_interrupts(), _links_followed() if follow_links else contextlib.nullcontext():
            return _dispatch(arguments)
    except KeyboardInterrupt as error:
        _say(_interrupted(arguments, str(error) or "Interrupted."))
        return 130
    except BrokenPipeError:  # `bough data show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BoughError as error:
        if debug:
            raise
        _say(f"Error: {error}")
        return error.exit_code
    except OSError as error:
        if debug:
            raise
        place = f"{error.filename}: " if error.filename is not None else ""
        _say(f"Error: {place}{error.strerror or error}{'' if place else '; --debug shows where'}")
        return 1
    except Exception as error:
        if debug:
            raise
        _say(f"Error: unexpected {type(error).__name__}: {error}\nThis is a bug in Bough; --debug shows the traceback.")
        return 1
    finally:
        # The process ends: another Ctrl-C must not interrupt the libraries that clean up, with a traceback.
        if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _dispatch(arguments: list[str]) -> int:
    for word in arguments:
        if not word.isprintable() and any("\ud800" <= character <= "\udfff" for character in word):
            raise InputError(f"{word!a} is not UTF-8; rename the file or folder")
    words = arguments[: next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))]
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in table.names():
            return _run(name, arguments[length:])
    if "--version" in arguments and not words:
        print(f"bough {import_module('bough').__version__}")
        return 0
    known = {name.split()[0] for name in table.names()}
    if not words or words[0] in known:
        print(_overview(words[0] if words else ""))
        if not arguments or {"-h", "--help", "--help-all"} & set(arguments):
            return 0
        if len(words) > 1:
            subverbs = [name.split()[1] for name in table.names() if name.startswith(words[0] + " ")]
            raise InputError(f"bough {words[0]} {words[1]} is not a command{did_you_mean(words[1], subverbs)}")
        raise InputError(
            f"bough {words[0]} needs one of the commands above"
            if words
            else f"bough needs a command before {arguments[0]}"
        )
    raise InputError(f"bough {words[0]} is not a command{did_you_mean(words[0], sorted(known))}")


def _run(name: str, arguments: list[str]) -> int:
    from bough.config import flags

    command = table.command(name)
    shown = () if "--help-all" in arguments else command.essential
    parser = flags.build(command.config, f"bough {name}", command.examples, shown)
    if {"-h", "--help", "--help-all"} & set(arguments):
        parser.print_help()
        return 0
    config = flags.parse(command.config, parser, arguments)
    from bough.commands.objects import check_inputs

    check_inputs(config)  # before the command's work, which may take seconds to import
    return int(command.run(config) or 0)


@contextlib.contextmanager
def _links_followed() -> Iterator[None]:
    """Not a setting: a file, such as the settings of a run from elsewhere, cannot ask for it."""
    before = os.environ.get(FOLLOW_LINKS)
    os.environ[FOLLOW_LINKS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FOLLOW_LINKS]
        else:
            os.environ[FOLLOW_LINKS] = before


def _interrupted(arguments: Sequence[str], what: str) -> str:
    """What was interrupted, and how to resume it."""
    name = arguments[0] if arguments else ""
    if name in table.RESUMED:
        return f"{what} The same command resumes."
    with contextlib.suppress(Exception):  # a library whose import was interrupted may fail in any way
        stage = table.command(name).stage if name in table.names() else None
        if stage is not None and stage.resumes:
            return f"{what} The same command with --resume continues from the newest checkpoint."
    return what


def _overview(first: str) -> str:
    chosen = [name for name in table.names() if not first or name.split()[0] == first]
    width = max(map(len, chosen))
    lines = [f"  {name:<{width}}  {table.about(name)}" for name in chosen]
    head = [] if first else ["Bough turns an open language model into an agent.", ""]
    tail = ["", "bough COMMAND --help explains a command and shows examples."]
    return "\n".join([*head, f"usage: bough {first or 'COMMAND'} …", "", "commands:", *lines, *tail])


def _say(text: str) -> None:
    # Messages quote servers, models and files: their control characters must not reach the terminal.
    text = CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\033[31m{text}\033[0m" if colour else text, file=sys.stderr)
