import pytest

from bough.environments.web import setup as module
from bough.errors import BoughError, InputError

pytest.importorskip("miniwob", reason="the miniwob package is not installed")


def test_a_browser_that_is_there_is_reported(monkeypatch):
    monkeypatch.setattr(module, "find", lambda: "/bin/chromium")
    lines = list(module.setup())
    assert lines[-1] == "The browser is /bin/chromium." and "miniwob" in lines[0]


def test_who_is_not_root_is_told_the_commands(monkeypatch):
    monkeypatch.setattr(module, "find", lambda: None)
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="sudo apt-get install --no-install-recommends chromium-headless-shell"):
        list(module.setup())


class Apt:
    """An apt-get that installs what it has, after an update if its lists are old."""

    def __init__(self, has, stale=False):
        self.has, self.stale, self.commands, self.installed = has, stale, [], None

    def run(self, command, **_):
        self.commands.append(command[1])
        ok = False
        if command[1] == "update":
            self.stale, ok = False, True
        elif not self.stale and command[-1] in self.has:
            self.installed, ok = f"/bin/{command[-1]}", True
        return type("Done", (), {"returncode": 0 if ok else 100})


@pytest.fixture
def root(monkeypatch):
    def use(apt):
        monkeypatch.setattr(module, "find", lambda: apt.installed)
        monkeypatch.setattr(module.os, "geteuid", lambda: 0)
        monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/apt-get")
        monkeypatch.setattr(module.subprocess, "run", apt.run)
        return list(module.setup())

    return use


def test_root_gets_the_shell(root):
    apt = Apt(["chromium-headless-shell", "chromium"])
    assert root(apt)[1:] == ["Installing chromium-headless-shell …", "The browser is /bin/chromium-headless-shell."]
    assert apt.commands == ["install"]


def test_old_lists_are_renewed_first(root):
    apt = Apt(["chromium-headless-shell"], stale=True)
    assert root(apt)[-1] == "The browser is /bin/chromium-headless-shell."
    assert apt.commands == ["install", "update", "install"]


def test_where_there_is_no_shell_the_whole_browser_does(root):
    assert root(Apt(["chromium"]))[-1] == "The browser is /bin/chromium."


def test_when_nothing_can_be_installed_that_is_said(root):
    with pytest.raises(BoughError, match="apt-get could not install"):
        root(Apt([]))
