import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.worlds.web import browsers


def test_the_program_finds_its_libraries_and_fonts_wherever_the_folder_is_moved(tmp_path):
    draft = tmp_path / "draft of it"
    (draft / "bin").mkdir(parents=True)
    program = draft / "bin" / "shell"
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH"\necho "$FONTCONFIG_FILE"\necho "$@"\n')
    libraries = [draft / "lib", draft / "more"]
    browsers.write(draft, program, libraries=libraries, fonts=draft / "fonts")
    final = draft.rename(tmp_path / "final")
    command = [str(final / "chromium"), "--flag", "two words"]
    for given, kept in (({}, ""), ({"LD_LIBRARY_PATH": "/mine"}, ":/mine")):
        said = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **given}, capture_output=True, text=True)
        assert said.stdout.splitlines() == [
            f"{final}/lib:{final}/more{kept}",
            f"{final}/fonts.conf",
            "--flag two words",
        ]
    assert '<dir prefix="relative">fonts</dir>' in (final / "fonts.conf").read_text()


NO_DPKG = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")


def package(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A real Debian package with these files in it."""
    content = folder / name
    (content / "DEBIAN").mkdir(parents=True)
    control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"
    (content / "DEBIAN" / "control").write_text(control)
    for place, text in files.items():
        path = content / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    archive = folder / f"{name}.deb"
    subprocess.run(["dpkg-deb", "--build", str(content), str(archive)], check=True, capture_output=True)
    return archive


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An apt-get that downloads these archives for `chromium`, and has nothing else."""

    def use(*archives: Path) -> list[list[str]]:
        real, commands = browsers._run, []

        def run(command, **more):
            if command[0] != "apt-get":
                return real(command, **more)
            commands.append(command)
            if command[-1] == "chromium":
                place = next(word.partition("=")[2] for word in command if word.startswith("Dir::Cache::Archives="))
                for archive in archives:
                    shutil.copy(archive, place)
            return "E: Unable to locate package"

        monkeypatch.setattr(browsers, "_run", run)
        monkeypatch.setattr(browsers.shutil, "which", lambda name: f"/usr/bin/{name}")
        return commands

    return use


@NO_DPKG
def test_packages_are_unpacked_with_their_libraries(apt, tmp_path):
    shell = '#!/bin/sh\necho "$LD_LIBRARY_PATH"\n'
    commands = apt(
        package(tmp_path, "chromium-headless-shell", {"usr/lib/chromium/chromium-headless-shell": shell}),
        package(tmp_path, "libnss3", {"usr/lib/any-linux-gnu/libnss3.so.1": ""}),
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    browsers.build_debian(folder)
    assert [command[-1] for command in commands] == ["update", "chromium-headless-shell", "chromium"]
    said = subprocess.run([str(folder / "chromium")], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert said.stdout.strip() == str(folder / "root/usr/lib/any-linux-gnu")
    assert not (folder / "apt").exists()  # a hundred megabytes of lists and archives


def test_the_systems_own_lists_and_locks_are_not_touched(apt, tmp_path):
    commands = apt()
    with pytest.raises(BoughError, match="apt-get cannot download a Chromium: E: Unable to locate package"):
        browsers.build_debian(tmp_path)
    for command in commands:
        settings = [word for word in command if word.startswith("Dir::")]
        assert len(settings) == 3 and all(word.partition("=")[2].startswith(str(tmp_path)) for word in settings)
        assert "Debug::NoLocking=true" in command


@NO_DPKG
def test_packages_without_a_browser_in_them_are_named(apt, tmp_path):
    apt(package(tmp_path, "chromium-stub", {"usr/bin/chromium": "#!/bin/sh\necho use snap\n"}))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(BoughError, match=r"no Chromium among its packages: chromium-stub\.deb"):
        browsers.build_debian(folder)


def test_a_system_without_apt_get_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setattr(browsers.shutil, "which", lambda _: None)
    with pytest.raises(BoughError, match="no apt-get"):
        browsers.build_debian(tmp_path)


def test_a_download_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(browsers, "TIMEOUT_S", 0.2)
    with pytest.raises(BoughError, match="sleep took longer than"):
        browsers._run(["sleep", "60"])


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


DOWNLOADS = """#!/bin/sh
mkdir -p "$PLAYWRIGHT_BROWSERS_PATH/shell-1"
printf '#!/bin/sh\\necho the shell\\n' > "$PLAYWRIGHT_BROWSERS_PATH/shell-1/chrome-headless-shell"
"""
FAILS = "#!/bin/sh\nprintf 'Error: getaddrinfo ENOTFOUND\\n  at x {\\n}\\n' >&2\nexit 1\n"


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A wheel whose program is this script, in the place of pip's download."""

    def use(script: str) -> Path:
        real = browsers._run

        def run(command, environment=None):
            if "pip" not in command:
                return real(command, environment)
            place = Path(command[command.index("--dest") + 1])
            place.mkdir()
            with zipfile.ZipFile(place / "playwright.whl", "w") as archive:
                archive.writestr("playwright/driver/node", script)
            return None

        monkeypatch.setattr(browsers, "_run", run)
        folder = tmp_path / "folder"
        folder.mkdir()
        return folder

    return use


@pytest.mark.parametrize("script", [DOWNLOADS, DOWNLOADS + "exit 1\n"], ids=["all of it", "without the rest"])
def test_the_shell_that_was_downloaded_is_the_browser(wheel, script):
    folder = wheel(script)
    browsers.build_playwright(folder)
    said = subprocess.run([str(folder / "chromium")], capture_output=True, text=True)
    assert said.stdout == "the shell\n"
    assert not (folder / "wheel").exists() and not (folder / "wheels").exists()


def test_why_nothing_could_be_downloaded_is_said(wheel):
    with pytest.raises(BoughError, match="node failed: Error: getaddrinfo ENOTFOUND"):
        browsers.build_playwright(wheel(FAILS))


def test_a_download_that_brings_nothing_is_said(wheel):
    with pytest.raises(BoughError, match="downloaded no chrome-headless-shell"):
        browsers.build_playwright(wheel("#!/bin/sh\n"))


def look_for(pid: int) -> None:
    """Raises ProcessLookupError when the process is gone; a killed one is there until somebody waits for it."""
    for _ in range(6000):
        os.kill(pid, 0)
        time.sleep(0.01)


def test_a_download_that_hangs_is_ended_with_all_that_it_started(monkeypatch, tmp_path):
    pid = tmp_path / "pid"

    class Hanging(subprocess.Popen):
        """Runs out of time once its own child is there."""

        def communicate(self, input=None, timeout=None):
            while not (pid.exists() and pid.read_text().endswith("\n")):
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(browsers.subprocess, "Popen", Hanging)
    with pytest.raises(BoughError, match="sh took longer than 300 s"):
        browsers._run(["sh", "-c", f"sleep 300 & echo $! > {pid}; wait"], {"PATH": "/usr/bin:/bin"})
    monkeypatch.undo()
    with pytest.raises(ProcessLookupError):
        look_for(int(pid.read_text()))


def test_only_wheels_with_a_known_hash_are_asked_for(monkeypatch, tmp_path):
    def run(command):
        assert "--require-hashes" in command
        raise BoughError("asked")

    monkeypatch.setattr(browsers, "_run", run)
    with pytest.raises(BoughError, match="asked"):
        browsers.build_playwright(tmp_path)
    assert (tmp_path / "requirements.txt").read_text().count("--hash=sha256:") == 4
