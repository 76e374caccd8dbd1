"""Imports every module of Bough, and tries what needs Linux, on something that looks like macOS from Python.

Run as a program, because it takes Linux apart for good. What Bough rests on is imported
first: how torch and others behave on macOS is theirs to see to.
"""

import contextlib
import fcntl
import importlib
import io
import json
import os
import pkgutil
import resource
import signal
import socket
import sys

import bough

# What Python has on Linux and not on macOS. Its own library holds on to epoll, so that stays.
LINUX_ONLY = {
    os: [
        "sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "pidfd_open", "setresuid", "setresgid",
        "getresuid", "memfd_create", "posix_fadvise", "posix_fallocate", "copy_file_range", "splice", "eventfd",
        "timerfd_create", "unshare", "setns", "getrandom", "O_PATH", "O_TMPFILE", "O_DIRECT", "pipe2", "preadv2",
        "fdatasync", "getxattr", "setxattr", "P_PIDFD", "waitid", "RWF_HIPRI",
    ],
    resource: ["prlimit", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RLIMIT_OFILE"],
    signal: ["SIGPWR", "SIGSTKFLT", "SIGRTMIN", "SIGRTMAX", "sigtimedwait", "sigwaitinfo", "pidfd_send_signal"],
    socket: ["SO_PEERCRED", "AF_NETLINK", "MSG_NOSIGNAL", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "AF_VSOCK"],
    fcntl: ["F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_OFD_SETLK"],
}  # fmt: skip


def names() -> list[str]:
    found = pkgutil.walk_packages(bough.__path__, "bough.")
    return [module.name for module in found if module.name != "bough.__main__"]


def import_all() -> dict[str, str]:
    """The modules that cannot be imported, and why."""
    troubles = {}
    for name in names():
        try:
            importlib.import_module(name)
        except Exception as error:
            troubles[name] = f"{type(error).__name__}: {error}"
    return troubles


def become_macos() -> None:
    for module, attributes in LINUX_ONLY.items():
        for attribute in attributes:
            if hasattr(module, attribute):
                delattr(module, attribute)
    os.process_cpu_count = os.cpu_count  # type: ignore[attr-defined]  # as there, from Python 3.13 on
    sys.platform = "darwin"
    for name in [name for name in sys.modules if name.partition(".")[0] == "bough"]:
        del sys.modules[name]


def said_by(arguments: list[str]) -> tuple[int, str]:
    """Exit status and output of a command."""
    from bough.cli import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        status = main(arguments)
    return status, " ".join(text.getvalue().split())


def main() -> None:
    elsewhere = import_all()
    said_by(sys.argv[1].split())  # loads what Bough rests on and loads late
    become_macos()
    answers = {"not on Linux": elsewhere, "imports": import_all()}
    answers |= {" ".join(words): said_by(words) for words in (line.split() for line in sys.argv[1:])}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
