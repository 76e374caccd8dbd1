import hashlib
import io
import shutil
import subprocess
import tarfile
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
        ways = {name: (name, self.way(name, works=name in unpacks)) for name in ("way-a", "way-b")}
        monkeypatch.setattr(module, "WAYS", ways)

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


@pytest.mark.parametrize(
    ("settings", "browser", "tried"),
    [
        ({"there": "/bin/chromium"}, "/bin/chromium", []),
        (
            {"apt": ["chromium-headless-shell", "chromium"]},
            "/bin/chromium-headless-shell",
            ["chromium-headless-shell"],
        ),
        ({"apt": ["chromium"]}, "/bin/chromium", ["chromium-headless-shell", "chromium"]),
        ({"unpacks": ["way-b"]}, "{cache}/browsers/way-b/chromium", ["way-a", "way-b"]),
        (
            {"apt": ["chromium"], "broken": ["/bin/"], "unpacks": ["way-a"]},
            "{cache}/browsers/way-a/chromium",
            ["chromium-headless-shell", "chromium", "way-a"],
        ),
        (
            {"unpacks": ["way-a", "way-b"], "broken": ["way-a"]},
            "{cache}/browsers/way-b/chromium",
            ["way-a", "way-b"],
        ),
    ],
    ids=str,
)
def test_the_first_browser_that_plays_is_used(machine, tmp_path, settings, browser, tried):
    made = machine(**settings)
    lines = list(module.setup())
    assert "miniwob" in lines[0] and lines[-1] == f"The browser is {browser.format(cache=tmp_path)}."
    assert made.tried == tried
    if "unpacks" in settings:
        assert find() == browser.format(cache=tmp_path), "no other is kept"


def test_why_each_way_fails_is_reported(machine):
    machine(unpacks=["way-b"], broken=["way-b"])
    said = []
    with pytest.raises(BoughError, match="sudo apt-get install --no-install-recommends chromium-headless-shell"):
        said += module.setup()
    assert said[1:] == [
        module.registry.NOT_ALLOWED,
        "Unpacking way-a …",
        "  not possible: way-a has nothing for this machine",
        "Unpacking way-b …",
        "  not possible: it was unpacked, but it does not work: no libnss3.so",
    ]


def test_a_browser_in_the_cache_that_no_longer_works_is_unpacked_again(machine, tmp_path):
    made = machine(unpacks=["way-a"])
    list(module.setup())
    old = tmp_path / "browsers" / "way-a"
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


def test_drafts_in_the_cache_are_no_browsers(machine, tmp_path):
    machine()
    draft = tmp_path / "browsers" / ".debian.1.draft"
    draft.mkdir(parents=True)
    (draft / "chromium").write_text("#!/bin/sh\n")
    (draft / "chromium").chmod(0o755)
    assert find() is None


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


def test_what_is_wrong_with_a_program_is_said(program, tmp_path, monkeypatch):
    said = "error while loading shared libraries: libnss3.so"
    assert trouble(program(f"#!/bin/sh\necho '{said}' >&2\nexit 127\n")) == said
    assert trouble(program("#!/bin/sh\nexit 0\n")) == "the browser died"
    assert "Permission denied" in trouble(str(tmp_path)) and "No such file" in trouble(str(tmp_path / "none"))
    monkeypatch.setattr(module, "TRIAL_TIMEOUT_S", 2.0)
    said = trouble(program('#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\nexec sleep 60\n'))
    assert said is not None and ("took longer than 2 s" in said or "timed out after 2.0 seconds" in said)


def test_the_program_finds_its_libraries_and_fonts_wherever_the_folder_is_moved(tmp_path):
    draft = tmp_path / "draft of it"
    (draft / "bin").mkdir(parents=True)
    program = draft / "bin" / "shell"
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH"\necho "$FONTCONFIG_FILE"\necho "$@"\n')
    module.write_launcher(draft, program, [draft / "lib", draft / "more"], draft / "fonts")
    final = draft.rename(tmp_path / "final")
    command = [str(final / "chromium"), "--flag", "two words"]
    for given, kept in (({}, ""), ({"LD_LIBRARY_PATH": "/mine"}, ":/mine")):
        said = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **given}, capture_output=True, text=True)
        expected = [f"{final}/lib:{final}/more{kept}", f"{final}/fonts.conf", "--flag two words"]
        assert said.stdout.splitlines() == expected
    assert '<dir prefix="relative">fonts</dir>' in (final / "fonts.conf").read_text()


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


APT = """#!/bin/sh
echo "$@" >> {folder}/log
for word; do case "$word" in Dir::Cache::Archives=*) place="${{word#*=}}";; esac; done
if [ "$word" = chromium ]; then cp {archives} "$place" || true; fi
echo "E: Unable to locate package" >&2
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An apt-get that downloads these archives for `chromium`, and has nothing else."""

    def use(*archives: Path) -> Path:
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "apt-get").write_text(APT.format(folder=tmp_path, archives=" ".join(map(str, archives))))
        (programs / "apt-get").chmod(0o755)
        if shutil.which("dpkg-deb") is None:
            pytest.skip("dpkg-deb is not installed")
        monkeypatch.setenv("PATH", str(programs), prepend=":")
        folder = tmp_path / "folder"
        folder.mkdir()
        return folder

    return use


def test_packages_are_unpacked_with_their_libraries(apt, tmp_path):
    shell = '#!/bin/sh\necho "$LD_LIBRARY_PATH"\n'
    folder = apt(
        package(tmp_path, "chromium-headless-shell", {"usr/lib/chromium/chromium-headless-shell": shell}),
        package(tmp_path, "libnss3", {"usr/lib/any-linux-gnu/libnss3.so.1": ""}),
    )
    module.build_debian(folder)
    commands = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[-1] for line in commands] == ["update", "chromium-headless-shell", "chromium"]
    said = subprocess.run([str(folder / "chromium")], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert said.stdout.strip() == str(folder / "root/usr/lib/any-linux-gnu")
    assert not (folder / "apt").exists()  # a hundred megabytes of lists and archives
    for line in commands:  # the system's own lists and locks are not touched
        settings = [word for word in line.split() if word.startswith("Dir::")]
        assert len(settings) == 3 and all(word.partition("=")[2].startswith(str(folder)) for word in settings)
        assert "Debug::NoLocking=true" in line


def test_packages_without_a_browser_are_named(apt, tmp_path, monkeypatch):
    folder = apt(package(tmp_path, "chromium-stub", {"usr/bin/chromium": "#!/bin/sh\necho use snap\n"}))
    with pytest.raises(BoughError, match=r"no Chromium among its packages: chromium-stub\.deb"):
        module.build_debian(folder)
    (tmp_path / "chromium-stub.deb").unlink()
    (tmp_path / "another").mkdir()
    with pytest.raises(BoughError, match="apt-get cannot download a Chromium: E: Unable to locate package"):
        module.build_debian(tmp_path / "another")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BoughError, match="no apt-get"):
        module.build_debian(folder)


def test_a_download_that_hangs_is_given_up(apt, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    folder = apt()
    (tmp_path / "bin" / "apt-get").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(BoughError, match="apt-get took longer than"):
        module.build_debian(folder)


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
        "chromium.br": b'#!/bin/sh\necho "$LD_LIBRARY_PATH"\n',
        "al2023.tar.br": archive({"lib/libnss3.so": b""}),
        "fonts.tar.br": archive({"fonts/Open_Sans/OpenSans.ttf": b""}),
        "swiftshader.tar.br": archive({"libEGL.so": b""}),
    }
    files = {f"package/bin/{name}": brotli.compress(content) for name, content in parts.items()}
    file = tmp_path / "chromium.tgz"
    file.write_bytes(archive(files | {"package/build/index.js": b"never run"}, "w:gz"))
    monkeypatch.setattr(module, "ADDRESS", file.as_uri())
    monkeypatch.setattr(module, "SHA512", hashlib.sha512(file.read_bytes()).hexdigest())
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    return file


@pytest.mark.parametrize("filters", [True, False], ids=["", "a Python that cannot filter archives, as 3.11.2"])
def test_the_shell_is_unpacked_with_its_libraries_and_fonts(served, tmp_path, monkeypatch, filters):
    if not filters:
        extract = tarfile.TarFile.extractall
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path: extract(self, path))
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    folder = tmp_path / "folder"
    folder.mkdir()
    module.build_npm(folder)
    said = subprocess.run([str(folder / "chromium")], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert said.stdout.strip() == str(folder / "al2023" / "lib")
    assert (folder / "fonts/fonts/Open_Sans/OpenSans.ttf").is_file() and (folder / "shell/libEGL.so").is_file()
    assert not list(folder.rglob("*.js"))


def test_another_file_or_machine_is_refused(served, tmp_path, monkeypatch):
    served.write_bytes(served.read_bytes() + b"\0")
    for number, said in enumerate(("not the expected file: its SHA-512 is", "cannot be read")):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(BoughError, match=said):
            module.build_npm(folder)
        served.unlink(missing_ok=True)
    monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
    with pytest.raises(BoughError, match="for Linux on x86_64 only"):
        module.build_npm(tmp_path)
