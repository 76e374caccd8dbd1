"""Runs a command as an ordinary user, though root asks: `python as_user.py COMMAND …`.

Root's own Python may lie where nobody else can read it. In a mount namespace of its own
its folder is shown through the closed ones above it; the host sees none of that.
"""

import os
import sys
from pathlib import Path

from bough.sandbox.inside import kernel

NOBODY = 65534


def show(folder: Path) -> None:
    """Opens the way to `folder` for everybody: closed folders above it are replaced by empty ones that lead there."""
    closed = [above for above in reversed(folder.parents) if not above.stat().st_mode & 0o001]
    if not closed:
        return
    file = os.open(folder, os.O_PATH)
    kernel.mount("tmpfs", str(closed[0]), "tmpfs", 0, "mode=755")
    folder.mkdir(parents=True)
    kernel.mount(f"/proc/self/fd/{file}", str(folder), None, kernel.MS_BIND | kernel.MS_REC)
    os.close(file)


def main() -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    show(Path(os.path.realpath(sys.base_prefix)))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
