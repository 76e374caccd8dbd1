import asyncio
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.sandbox import isolation, view
from bough.sandbox.base import NoSandboxError, Result, SandboxLimits
from bough.sandbox.pool import Sandbox
from tests.sandbox.conftest import isolation_here


@pytest.fixture(autouse=True)
def _forgets():
    isolation._tried.cache_clear()
    yield
    isolation._tried.cache_clear()


def neither(kind: str, user: int) -> str:
    return f"{kind} is forbidden"


def test_without_isolation_code_is_refused_with_what_was_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "_tried", neither)
    with pytest.raises(NoSandboxError) as error:
        isolation.choose()
    assert isinstance(error.value, InputError)
    assert "--options unsafe_no_sandbox=true" in str(error.value) and "bubblewrap is forbidden" in str(error.value)
    assert "namespaces is forbidden" in str(error.value)
    assert isolation.choose(unsafe=True) == isolation.choose(unsafe=True, wanted="none") == "none"
    with pytest.raises(NoSandboxError, match="--options unsafe_no_sandbox=true"):
        isolation.choose(wanted="none")


def test_going_without_is_never_chosen_where_there_is_isolation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "_tried", lambda kind, user: None if kind == "namespaces" else "no")
    assert isolation.choose(unsafe=True) == "namespaces"
    monkeypatch.setattr(isolation, "_tried", lambda kind, user: None)
    assert isolation.choose() == "bubblewrap"


def test_isolation_that_does_not_work_is_not_chosen(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr("shutil.which", lambda name: None)
        assert isolation._tried("bubblewrap", os.geteuid()) == "bwrap is not installed"
    broken = lambda *_, **__: (["/bin/sh", "-c", "echo one >&2; echo cannot mount >&2; exit 1"], {})  # noqa: E731
    monkeypatch.setattr(isolation, "command", broken)
    assert isolation._tried("namespaces", os.geteuid()) == "cannot mount"
    isolation._tried.cache_clear()
    monkeypatch.setattr(isolation, "command", lambda *_, **__: (["/no/such/program"], {}))
    assert "No such file" in str(isolation._tried("namespaces", os.geteuid()))


def test_the_keeper_without_isolation_never_kills_everybody(tmp_path: Path):
    """It is told that it is alone, but it is not the first process: it must not believe it."""
    command, environment = isolation.command("none", SandboxLimits(), str(tmp_path))
    settings = json.loads(command[-1]) | {"alone": True}
    code = (
        f"import sys, json; sys.path.insert(0, {isolation.SOURCE!r})\n"
        "from bough.sandbox.inside.keeper import Keeper\nprint(Keeper(0, json.loads(sys.argv[1])).alone)"
    )
    done = subprocess.run(
        [command[0], "-c", code, json.dumps(settings)], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("kind", isolation_here())
def test_a_library_folder_behind_links_is_read_through_them(kind: isolation.Isolation, monkeypatch: pytest.MonkeyPatch):
    """As /lib64 leads to /usr/lib64 on some machines, where the dynamic loader lies."""

    async def read(path: Path) -> Result:
        async with Sandbox(workers=1, isolation=kind) as sandbox:
            return await sandbox.run(f"open({str(path)!r}).read()")

    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "deep" / "real").mkdir(parents=True)
        (folder / "deep" / "real" / "loader").write_text("found")
        (folder / "deep" / "second").symlink_to("real")
        (folder / "first").symlink_to(folder / "deep" / "second")
        monkeypatch.setattr(view, "SYSTEM", (*view.SYSTEM, str(folder / "first")))
        view.view.cache_clear()
        try:
            result = asyncio.run(read(folder / "first" / "loader"))
        finally:
            view.view.cache_clear()
    assert result.value == "'found'", result


@pytest.mark.parametrize("kind", isolation_here())
def test_a_strict_umask_does_not_close_the_way_to_python(kind: isolation.Isolation):
    before = os.umask(0o077)
    try:
        isolation._tried.cache_clear()
        assert isolation._tried(kind, os.geteuid()) is None
    finally:
        os.umask(before)
