import os
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.worlds.web import browsers

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
