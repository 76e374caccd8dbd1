import pytest

from bough.environments import registry


class Machine:
    """Programs that are there, and what each command's exit status is."""

    def __init__(self, monkeypatch, *, programs, user, fails=()):
        self.commands, self.programs, self.fails = [], programs, list(fails)
        monkeypatch.setattr(registry.shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
        monkeypatch.setattr(registry.os, "geteuid", lambda: user)
        monkeypatch.setattr(registry.subprocess, "run", self.run)

    def run(self, command, **_):
        words = [word for word in command if not word.startswith(("-o", "Acquire::", "DPkg::"))]
        self.commands.append(" ".join(words))
        failed = words[:3] in self.fails or self.commands[-1] in self.fails
        return type("Done", (), {"returncode": 100 if failed else 0})


def test_root_installs_with_apt_get(monkeypatch):
    Machine(monkeypatch, programs=["apt-get", "sudo"], user=0)
    assert registry.installer() == ["apt-get", *registry.PATIENCE]


def test_an_ordinary_user_installs_through_sudo_where_it_asks_for_no_password(monkeypatch):
    machine = Machine(monkeypatch, programs=["apt-get", "sudo"], user=1000)
    assert registry.installer() == ["sudo", "-n", "apt-get", *registry.PATIENCE]
    assert machine.commands == ["sudo -n apt-get --version"]


@pytest.mark.parametrize(
    ("programs", "fails"),
    [(["apt-get"], []), (["apt-get", "sudo"], ["sudo -n apt-get --version"]), (["dnf", "sudo"], [])],
    ids=["no sudo", "sudo asks for a password", "no apt-get"],
)
def test_nobody_else_installs_anything(monkeypatch, programs, fails):
    Machine(monkeypatch, programs=programs, user=1000, fails=fails)
    assert registry.installer() is None


def test_old_lists_are_renewed_first(monkeypatch):
    machine = Machine(monkeypatch, programs=["apt-get"], user=0)
    assert registry.install(["apt-get"], "tree")
    install = "apt-get install --yes --no-install-recommends tree"
    assert machine.commands == [install]
    machine = Machine(monkeypatch, programs=["apt-get"], user=0, fails=[install])
    assert not registry.install(["apt-get"], "tree")
    assert machine.commands == [install, "apt-get update", install]
