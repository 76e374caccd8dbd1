from pathlib import Path

import pytest

from bough.errors import BoughError, InputError
from bough.worlds.web import setup as module
from bough.worlds.web.browser import VARIABLE, find
from bough.worlds.web.setup import trouble

pytest.importorskip("miniwob", reason="the miniwob package is not installed")


class Machine:
    """A machine: which browser is on its PATH, what apt-get has, which ways to unpack one work, which browsers play."""

    def __init__(self, monkeypatch, tmp_path, *, there=None, apt=None, unpacks=(), broken=()):
        self.there, self.apt, self.broken, self.tried = there, apt, list(broken), []
        monkeypatch.setenv("BOUGH_CACHE", str(tmp_path))
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setattr("bough.worlds.web.browser.PROGRAMS", ())
        monkeypatch.setattr(module, "find", lambda: find() or self.there)
        monkeypatch.setattr(module, "trouble", self.trouble)
        monkeypatch.setattr(module.registry, "installer", lambda: None if apt is None else ["apt-get"])
        monkeypatch.setattr(module.registry, "install", self.install)
        ways = {name: (name, self.way(name, works=name in unpacks)) for name in ("first", "second")}
        monkeypatch.setattr(module, "UNPACKED", ways)

    def trouble(self, program):
        return "no libnss3.so" if any(word in program for word in self.broken) else None

    def install(self, _, package):
        self.tried.append(package)
        if package in self.apt:
            self.there = f"/bin/{package}"
        return package in self.apt

    def way(self, name, *, works):
        def build(folder):
            self.tried.append(name)
            if not works:
                raise BoughError(f"{name} has nothing for this machine")
            (folder / "chromium").write_text(name)
            (folder / "chromium").chmod(0o755)

        return build


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return lambda **settings: Machine(monkeypatch, tmp_path, **settings)


def test_a_browser_that_is_there_and_works_is_reported(machine):
    made = machine(there="/bin/chromium")
    lines = list(module.setup())
    assert "miniwob" in lines[0] and lines[1:] == ["The browser is /bin/chromium."]
    assert made.tried == []


def test_who_may_install_packages_gets_the_shell(machine):
    made = machine(apt=["chromium-headless-shell", "chromium"])
    lines = ["Installing chromium-headless-shell …", "The browser is /bin/chromium-headless-shell."]
    assert list(module.setup())[1:] == lines
    assert made.tried == ["chromium-headless-shell"]


def test_where_there_is_no_shell_the_whole_browser_does(machine):
    machine(apt=["chromium"])
    assert list(module.setup())[-1] == "The browser is /bin/chromium."


def test_who_may_not_install_packages_gets_a_browser_in_the_cache(machine, tmp_path):
    made = machine(unpacks=["second"])
    said = list(module.setup())
    place = tmp_path / "browsers" / "second" / "chromium"
    assert said[1:] == [
        module.registry.NOT_ALLOWED,
        "Unpacking first …",
        "  not possible: first has nothing for this machine",
        "Unpacking second …",
        f"The browser is {place}.",
    ]
    assert find() == str(place)
    made.tried.clear()
    assert list(module.setup())[-1] == f"The browser is {place}." and made.tried == []


def test_a_package_that_does_not_work_is_replaced_by_a_browser_in_the_cache(machine, tmp_path):
    machine(apt=["chromium"], broken=["/bin/"], unpacks=["first"])
    assert list(module.setup())[-1] == f"The browser is {tmp_path / 'browsers' / 'first' / 'chromium'}."


def test_a_browser_that_was_unpacked_and_does_not_work_is_not_kept(machine, tmp_path):
    machine(unpacks=["first", "second"], broken=["first"])
    said = list(module.setup())
    assert "  not possible: it was unpacked, but it does not work: no libnss3.so" in said
    assert not (tmp_path / "browsers" / "first").exists()
    assert find() == str(tmp_path / "browsers" / "second" / "chromium")


def test_a_browser_in_the_cache_that_no_longer_works_is_unpacked_again(machine, tmp_path):
    made = machine(unpacks=["first"])
    list(module.setup())
    old = tmp_path / "browsers" / "first"
    (old / "old").write_text("")
    plays = iter(["no libnss3.so", None])
    made.trouble = module.trouble = lambda _: next(plays)
    assert f"{old / 'chromium'} does not work: no libnss3.so" in list(module.setup())
    assert (old / "chromium").exists() and not (old / "old").exists()


def test_a_named_browser_that_does_not_work_is_a_mistake_of_the_users(machine, monkeypatch):
    machine(there="/bin/mine", broken=["mine"])
    monkeypatch.setenv(VARIABLE, "/bin/sh")
    monkeypatch.setattr(module, "find", lambda: "/bin/mine")
    with pytest.raises(InputError, match=r"BOUGH_CHROMIUM is /bin/mine, which does not work: no libnss3\.so"):
        list(module.setup())


@pytest.mark.parametrize("apt", [None, []], ids=["an ordinary user", "root"])
def test_where_no_browser_can_be_had_the_commands_are_told(machine, apt):
    made = machine(apt=apt)
    with pytest.raises(BoughError, match="sudo apt-get install --no-install-recommends chromium-headless-shell"):
        list(module.setup())
    assert made.tried[-2:] == ["first", "second"]


def test_drafts_in_the_cache_are_no_browsers(monkeypatch, tmp_path):
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("bough.worlds.web.browser.PROGRAMS", ())
    draft = tmp_path / "browsers" / ".debian.1.draft"
    draft.mkdir(parents=True)
    Path(draft / "chromium").write_text("#!/bin/sh\n")
    (draft / "chromium").chmod(0o755)
    assert find() is None


pytest.importorskip("miniwob", reason="the miniwob package is not installed")


@pytest.fixture
def program(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "chromium"
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    return write


def test_a_real_browser_plays_a_page():
    path = find()
    if path is None:
        pytest.skip("no Chromium is installed; bough env setup web")
    assert trouble(path) is None


def test_a_program_that_lacks_a_library_is_quoted(program):
    said = "error while loading shared libraries: libnss3.so"
    assert trouble(program(f"#!/bin/sh\necho '{said}' >&2\nexit 127\n")) == said


def test_a_program_that_is_no_browser_is_found_out(program):
    assert trouble(program("#!/bin/sh\nexit 0\n")) == "the browser died"


def test_a_program_that_cannot_be_started_is_found_out(tmp_path):
    assert "Permission denied" in trouble(str(tmp_path)) and "No such file" in trouble(str(tmp_path / "none"))


def test_a_browser_that_never_answers_is_given_up(program, monkeypatch):
    monkeypatch.setattr("bough.worlds.web.setup.TIMEOUT_S", 2.0)
    said = trouble(program('#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\nexec sleep 60\n'))
    assert said is not None and ("took longer than 2 s" in said or "timed out after 2.0 seconds" in said)
