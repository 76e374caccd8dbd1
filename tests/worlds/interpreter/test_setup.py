import pytest

from bough.environments.tasks import configured
from bough.sandbox.base import NoSandboxError
from bough.worlds.interpreter import setup as module
from bough.worlds.interpreter.environment import Interpreter


@pytest.fixture
def machine(monkeypatch):
    """A machine on which bubblewrap is there, can be installed by apt-get, or neither."""

    def make(*, there=False, installer=None, has=True, groups=False):
        found = {"bwrap": "/usr/bin/bwrap"} if there else {}
        monkeypatch.setattr(module.shutil, "which", found.get)
        monkeypatch.setattr(module.registry, "installer", lambda: installer)

        def install(_, package):
            assert package == "bubblewrap"
            found.update({"bwrap": "/usr/bin/bwrap"} if has else {})
            return has

        monkeypatch.setattr(module.registry, "install", install)
        monkeypatch.setattr(module.group, "available", lambda: groups)
        monkeypatch.setattr(module.isolation, "choose", lambda: "bubblewrap" if found else "namespaces")

    return make


def test_bubblewrap_that_is_there_is_reported(machine):
    machine(there=True)
    assert list(module.setup()) == ["bubblewrap is /usr/bin/bwrap.", "Code runs in a sandbox of bubblewrap."]


def test_control_groups_are_reported_where_there_are_any(machine):
    machine(there=True, groups=True)
    assert list(module.setup())[-1] == "Each sandbox has a control group, which limits its memory and processes."


def test_bubblewrap_is_installed_where_that_is_allowed(machine):
    machine(installer=["apt-get"])
    lines = ["Installing bubblewrap …", "bubblewrap is /usr/bin/bwrap.", "Code runs in a sandbox of bubblewrap."]
    assert list(module.setup()) == lines


def test_who_may_not_install_it_is_told_how_and_what_is_used_instead(machine):
    machine()
    first, last = module.setup()
    assert "sudo apt-get install bubblewrap" in first and last == "Code runs in a sandbox of namespaces."


def test_an_installation_that_fails_is_said(machine):
    machine(installer=["apt-get"], has=False)
    assert list(module.setup())[1:] == [
        "apt-get could not install bubblewrap.", "Code runs in a sandbox of namespaces.",
    ]  # fmt: skip


def test_another_system_than_linux_is_refused_with_a_sentence(machine, monkeypatch):
    machine()
    monkeypatch.setattr(module.isolation.sys, "platform", "darwin")
    with pytest.raises(NoSandboxError, match=r"needs Linux, and this is darwin.*sandbox_url"):
        list(module.setup())


def test_a_node_of_a_cluster_without_a_sandbox_is_refused_unless_the_sandbox_is_elsewhere(monkeypatch):
    monkeypatch.setattr(module.isolation.sys, "platform", "darwin")
    with pytest.raises(NoSandboxError, match="needs Linux"):
        Interpreter.lacks()
    assert configured(Interpreter, {"sandbox_url": "http://127.0.0.1:1"}).lacks() is None
