import asyncio
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.sandbox import view, walls
from bough.sandbox.base import NoSandboxError, Result, SandboxLimits
from bough.sandbox.pool import Sandbox
from tests.sandbox.conftest import walls_here


@pytest.fixture(autouse=True)
def _forgets():
    walls._tried.cache_clear()
    yield
    walls._tried.cache_clear()


def neither(kind: str, user: int) -> str:
    return f"{kind} is forbidden"


def test_where_there_are_no_walls_code_is_refused_with_what_was_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walls, "_tried", neither)
    with pytest.raises(NoSandboxError) as error:
        walls.choose()
    assert isinstance(error.value, InputError)
    assert "--unsafe-no-sandbox" in str(error.value) and "bubblewrap is forbidden" in str(error.value)
    assert "namespaces is forbidden" in str(error.value)
    assert walls.choose(unsafe=True) == "none"


def test_going_without_is_never_chosen_where_there_are_walls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walls, "_tried", lambda kind, user: None if kind == "namespaces" else "no")
    assert walls.choose(unsafe=True) == "namespaces"
    monkeypatch.setattr(walls, "_tried", lambda kind, user: None)
    assert walls.choose() == "bubblewrap"


def test_asking_for_no_walls_needs_consent():
    with pytest.raises(NoSandboxError, match="--unsafe-no-sandbox"):
        walls.choose(wanted="none")
    assert walls.choose(wanted="none", unsafe=True) == "none"


def test_a_missing_bubblewrap_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert walls._tried("bubblewrap", os.geteuid()) == "bwrap is not installed"


def test_walls_that_do_not_stand_are_not_taken(monkeypatch: pytest.MonkeyPatch):
    broken = lambda *_, **__: (["/bin/sh", "-c", "echo one >&2; echo cannot mount >&2; exit 1"], {})  # noqa: E731
    monkeypatch.setattr(walls, "command", broken)
    assert walls._tried("namespaces", os.geteuid()) == "cannot mount"
    walls._tried.cache_clear()
    monkeypatch.setattr(walls, "command", lambda *_, **__: (["/no/such/program"], {}))
    assert "No such file" in str(walls._tried("namespaces", os.geteuid()))


def test_only_the_keeper_without_walls_keeps_its_hands_off_all_processes():
    for kind, alone in (("bubblewrap", True), ("none", False)):
        command, _ = walls.command(kind, SandboxLimits(), "/folder")
        assert json.loads(command[-1])["alone"] is alone
    command, environment = walls.command("none", SandboxLimits(), "/folder")
    assert json.loads(command[-1])["wipe"] == ["/folder"] and environment["HOME"] == "/folder"


def test_no_variable_of_ours_goes_along(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_KEY", "x")
    for kind in ("bubblewrap", "namespaces", "none"):
        command, environment = walls.command(kind, SandboxLimits(), "/folder")
        assert "SECRET_KEY" not in environment and "SECRET_KEY" not in " ".join(command)


def test_the_keeper_without_walls_never_kills_everybody(tmp_path: Path):
    """It is told that it is alone, but it is not the first process: it must not believe it."""
    command, environment = walls.command("none", SandboxLimits(), str(tmp_path))
    settings = json.loads(command[-1]) | {"alone": True}
    code = (
        f"import sys, json; sys.path.insert(0, {walls.SOURCE!r})\n"
        "from bough.sandbox.inside.keeper import Keeper\nprint(Keeper(0, json.loads(sys.argv[1])).alone)"
    )
    done = subprocess.run(
        [command[0], "-c", code, json.dumps(settings)], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("kind", walls_here())
def test_a_library_folder_behind_links_is_read_through_them(kind: walls.Walls, monkeypatch: pytest.MonkeyPatch):
    """As /lib64 leads to /usr/lib64 on some machines, where the dynamic loader lies."""

    async def read(path: Path) -> Result:
        async with Sandbox(workers=1, walls=kind) as sandbox:
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


@pytest.mark.parametrize("kind", walls_here())
def test_a_strict_umask_does_not_close_the_way_to_python(kind: walls.Walls):
    before = os.umask(0o077)
    try:
        walls._tried.cache_clear()
        assert walls._tried(kind, os.geteuid()) is None
    finally:
        os.umask(before)
