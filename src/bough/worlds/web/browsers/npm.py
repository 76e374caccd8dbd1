"""The headless shell of npm's @sparticuz/chromium: for Linux on x86_64, with its own libraries and fonts.

It is made for machines that have neither. The archive is data here: downloaded, checked
and unpacked; no npm and no JavaScript is run.
"""

from __future__ import annotations

import hashlib
import io
import platform
import sys
import tarfile
import time
import urllib.request
from pathlib import Path

from bough.errors import BoughError
from bough.worlds.web.browsers import launcher

VERSION = "153.0.0"
ADDRESS = f"https://registry.npmjs.org/@sparticuz/chromium/-/chromium-{VERSION}.tgz"
SHA512 = (
    "8e2196a92bcf31dbb8f8ff538a562a011ef21063c41c8371fa50af13f36a34efc41d8cc5ff1d615222394fa8a8548b7b"
    "744cbb9fcf1bcb24f4be4f9d9ec810c0"
)
MOST_BYTES = 200 << 20
TIMEOUT_S = 300.0


def build(folder: Path) -> None:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "AMD64"):
        raise BoughError(f"it is built for Linux on x86_64 only, and this is {platform.system()} on {machine}")
    try:
        import brotli
    except ImportError:
        raise BoughError("it needs the brotli package; install it with: pip install 'bough[web]'") from None
    parts = _read(_download())
    # Libraries that draw are looked for beside the program.
    places = {"al2023": folder / "al2023", "fonts": folder / "fonts", "swiftshader": folder / "shell"}
    for name, place in places.items():
        _unpack(brotli.decompress(parts[f"{name}.tar.br"]), place)
    program = folder / "shell" / "headless_shell"
    program.write_bytes(brotli.decompress(parts["chromium.br"]))
    launcher.write(folder, program, libraries=[folder / "al2023" / "lib"], fonts=folder / "fonts")


def _unpack(content: bytes, place: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(place, filter="data")
        else:  # Python 3.11 before 3.11.4
            archive.extractall(place)  # noqa: S202  the digest of the package has been checked


def _download() -> bytes:
    end = time.monotonic() + TIMEOUT_S
    content = bytearray()
    try:
        with urllib.request.urlopen(ADDRESS, timeout=30) as answer:
            while chunk := answer.read(1 << 20):
                content += chunk
                if time.monotonic() > end:
                    raise BoughError(f"{ADDRESS} took longer than {TIMEOUT_S:.0f} s")
                if len(content) > MOST_BYTES:
                    break
    except OSError as error:
        raise BoughError(f"{ADDRESS} cannot be read: {error}") from error
    found = hashlib.sha512(content).hexdigest()
    if found != SHA512:
        raise BoughError(f"{ADDRESS} is not the expected file: its SHA-512 is {found}, not {SHA512}")
    return bytes(content)


def _read(archive: bytes) -> dict[str, bytes]:
    """The compressed parts by name."""
    parts = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        for member in package:
            if member.isfile() and member.name.startswith("package/bin/"):
                file = package.extractfile(member)
                assert file is not None
                parts[member.name.removeprefix("package/bin/")] = file.read()
    return parts
