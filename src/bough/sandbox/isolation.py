"""The ways to isolate a sandbox on this machine, each as the command that starts a keeper in it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from bough.sandbox.base import NoSandboxError, SandboxLimits
from bough.sandbox.inside.launch import DEVICES
from bough.sandbox.view import ENVIRONMENT, PROGRAM, SCRATCH, SandboxView, boot, covered, view

Isolation = Literal["bubblewrap", "namespaces", "none"]
SOURCE = str(Path(__file__).parents[2])
REFUSAL = (
    "this machine does not allow sandboxes, so code that a model wrote is not run here. "
    "Install bubblewrap (apt-get install bubblewrap), or allow user namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1; in a container, --security-opt seccomp=unconfined). "
    "To run such code without isolation, pass --options unsafe_no_sandbox=true"
)


def command(
    isolation: Isolation,
    limits: SandboxLimits,
    folder: str,
    warm_up: str = "",
    hidden: tuple[str, ...] = (),
    packages: tuple[str, ...] = (),
) -> tuple[list[str], dict[str, str]]:
    """The command to start, and its environment variables.

    `folder` is an empty folder to mount on or to work in. `hidden` packages are not visible
    inside, except without isolation. `packages` are folders on the host to import from.
    """
    places = {path: f"{PROGRAM}/packages/{number}" for number, path in enumerate(packages)}
    shown = replace(view(), views=view().views | places, packages=[*view().packages, *packages])
    settings: dict[str, Any] = asdict(limits) | {
        "alone": isolation != "none",
        "scratch": SCRATCH[0],
        "wipe": list(SCRATCH),
        "packages": [shown.inside(path) for path in shown.packages],
        "warm_up": warm_up,
        "hide": {shown.inside(path): seen for path, seen in shown.hide.items()},
        "remount": [],
    }
    if isolation == "none":
        settings |= {"scratch": folder, "wipe": [folder], "packages": shown.packages, "hide": shown.hide}
        return [shown.python, *boot("keeper", SOURCE), json.dumps(settings)], ENVIRONMENT | {"HOME": folder}
    bubblewrap = shutil.which("bwrap") or "bwrap"
    # Bubblewrap itself can limit the bytes in a folder, but not the files. Set-uid, it passes no capability on.
    set_uid = Path(bubblewrap).is_file() and Path(bubblewrap).stat().st_mode & stat.S_ISUID
    if isolation == "bubblewrap" and (os.geteuid() == 0 or not set_uid):
        settings["remount"] = list(SCRATCH)
    keeper = [shown.inside(shown.python), *boot("keeper", PROGRAM), json.dumps(settings)]
    if isolation == "bubblewrap":
        options = _bubblewrap(shown, limits, covered(hidden), remounts=bool(settings["remount"]))
        return [bubblewrap, *options, *keeper], {}
    plan = {
        "root": folder,
        "views": shown.views,
        "links": shown.links,
        "covered": covered(hidden),
        "scratch": list(SCRATCH),
        "disk_mb": limits.disk_mb,
        "command": keeper,
        "environment": ENVIRONMENT | shown.environment,
    }
    return [shown.python, *boot("launch", SOURCE), json.dumps(plan)], {}


def _bubblewrap(shown: SandboxView, limits: SandboxLimits, hidden: list[str], *, remounts: bool) -> list[str]:
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    # Capabilities that the keeper uses at its start and then drops: to become the user nobody, and to limit the
    # scratch folders.
    options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if os.geteuid() == 0 else ["--unshare-user"]
    options += ["--cap-add", "CAP_SYS_ADMIN"] if remounts else []
    options += ["--new-session", "--as-pid-1", "--clearenv"]
    for name, value in (ENVIRONMENT | shown.environment).items():
        options += ["--setenv", name, value]
    places = [*shown.views.values(), *shown.links, *SCRATCH]
    # Folders that bubblewrap creates by itself are accessible only to their owner.
    for folder in sorted({str(folder) for place in places for folder in Path(place).parents} - {"/"}):
        options += ["--perms", "0755", "--dir", folder]
    for source, place in shown.views.items():
        options += ["--ro-bind", source, place]
    for folder in hidden:
        options += ["--perms", "0555", "--tmpfs", folder, "--remount-ro", folder]
    for link, target in shown.links.items():
        options += ["--symlink", target, link]
    for device in DEVICES:
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for folder in SCRATCH:
        options += ["--perms", "1777", "--size", str(limits.disk_mb << 20), "--tmpfs", folder]
    return [*options, "--remount-ro", "/", "--chdir", "/"]


def check_platform() -> None:
    """Raises `NoSandboxError` on anything but Linux, whose kernel provides the isolation and the limits."""
    if sys.platform != "linux":
        raise NoSandboxError(f"the sandbox needs Linux, and this is {sys.platform}; use a machine or container with it")


def choose(*, unsafe: bool = False, wanted: Isolation | None = None) -> Isolation:
    """The best isolation available here. Raises `NoSandboxError` if there is none and `unsafe` is False."""
    check_platform()
    if wanted == "none" and not unsafe:
        raise NoSandboxError("a sandbox without isolation needs --options unsafe_no_sandbox=true")
    if wanted is not None:
        return wanted
    kinds: tuple[Isolation, ...] = ("bubblewrap", "namespaces")
    troubles = {}
    for kind in kinds:
        trouble = _tried(kind, os.geteuid())
        if trouble is None:
            return kind
        troubles[kind] = trouble
    if unsafe:
        return "none"
    raise NoSandboxError(REFUSAL, [f"{kind}: {trouble}" for kind, trouble in troubles.items()])


@cache
def _tried(kind: Isolation, user: int) -> str | None:  # noqa: ARG001  another user, another answer
    """Why a keeper does not start with this kind of isolation; None if it does."""
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    with tempfile.TemporaryDirectory(prefix="bough-") as folder:
        start, environment = command(kind, SandboxLimits(), folder)
        try:
            # At the end of its input a keeper ends.
            done = subprocess.run(  # noqa: S603  ours
                start, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    complaint = done.stderr.decode(errors="replace").strip().splitlines()
    return complaint[-1] if complaint or done.returncode else None
