import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.worlds.web import browsers

SHELL = b'#!/bin/sh\necho "$LD_LIBRARY_PATH"\n'


def archive(files: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as made:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the form of the real one, under an address of its own."""
    brotli = pytest.importorskip("brotli", reason="the brotli package is not installed")
    parts = {
        "chromium.br": SHELL,
        "al2023.tar.br": archive({"lib/libnss3.so": b""}),
        "fonts.tar.br": archive({"fonts/Open_Sans/OpenSans.ttf": b""}),
        "swiftshader.tar.br": archive({"libEGL.so": b""}),
    }
    files = {f"package/bin/{name}": brotli.compress(content) for name, content in parts.items()}
    file = tmp_path / "chromium.tgz"
    file.write_bytes(archive(files | {"package/build/index.js": b"never run"}, "w:gz"))
    monkeypatch.setattr(browsers, "ADDRESS", file.as_uri())
    monkeypatch.setattr(browsers, "SHA512", hashlib.sha512(file.read_bytes()).hexdigest())
    monkeypatch.setattr(browsers.platform, "machine", lambda: "x86_64")
    return file


def test_the_shell_is_unpacked_with_its_libraries_and_fonts(served, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    browsers.build_npm(folder)
    said = subprocess.run([str(folder / "chromium")], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert said.stdout.strip() == str(folder / "al2023" / "lib")
    assert (folder / "fonts/fonts/Open_Sans/OpenSans.ttf").is_file() and (folder / "shell/libEGL.so").is_file()
    assert not list(folder.rglob("*.js"))


def test_it_is_unpacked_by_a_python_that_cannot_filter_archives(served, tmp_path, monkeypatch):
    """As Debian 12's is, 3.11.2."""
    extract = tarfile.TarFile.extractall
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path: extract(self, path))
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    browsers.build_npm(tmp_path)
    assert (tmp_path / "al2023/lib/libnss3.so").is_file()


def test_another_file_than_the_expected_one_is_refused(served, tmp_path):
    served.write_bytes(served.read_bytes() + b"\0")
    with pytest.raises(BoughError, match="not the expected file: its SHA-512 is"):
        browsers.build_npm(tmp_path)


def test_a_server_that_cannot_be_reached_is_named(served, tmp_path):
    served.unlink()
    with pytest.raises(BoughError, match="cannot be read"):
        browsers.build_npm(tmp_path)


def test_a_machine_that_it_is_not_built_for_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setattr(browsers.platform, "machine", lambda: "aarch64")
    with pytest.raises(BoughError, match="for Linux on x86_64 only"):
        browsers.build_npm(tmp_path)
