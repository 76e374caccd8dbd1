import shutil
import subprocess
from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.worlds.web import browsers

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
