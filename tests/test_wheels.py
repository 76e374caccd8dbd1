from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bough import files
from bough.errors import BoughError
from bough.files import Wheel

CONTENT = b"a wheel"
WHEEL = Wheel("thing==1.0", "thing-1.0-py3-none-any.whl", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_wheel_in_the_cache_is_taken_without_pip(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "run_module", lambda *_, **__: pytest.fail("ran pip"))
    (cache / "wheels").mkdir(parents=True)
    by_hand = cache / "wheels" / WHEEL.file
    by_hand.write_bytes(CONTENT)
    assert WHEEL.fetch(tmp_path, "the thing") == by_hand
    WHEEL.check(by_hand)
    by_hand.write_bytes(CONTENT + b"!")
    with pytest.raises(BoughError, match=f"not {WHEEL.sha256}\nRun `pip download --no-deps thing==1.0`"):
        WHEEL.check(by_hand)


def test_pip_downloads_exactly_that_version_and_nothing_else(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(files, "run_module", lambda *arguments, **_: ran.append(arguments))
    assert WHEEL.fetch(tmp_path, "the thing") == tmp_path / WHEEL.file
    ((module, command, *options),) = ran
    assert (module, command, options[-1]) == ("pip", "download", "thing==1.0")
    assert {"--no-deps", "--only-binary=:all:"} <= set(options)


def test_without_a_network_the_message_says_what_to_do(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: str, **__: str) -> None:
        raise BoughError("no route")

    monkeypatch.setattr(files, "run_module", fail)
    with pytest.raises(BoughError) as error:
        WHEEL.fetch(tmp_path, "the thing")
    assert str(error.value).startswith("the thing cannot be fetched (is there a network?): no route\nRun `pip download")
    assert f"put {WHEEL.file} into {cache / 'wheels'}" in str(error.value)


def test_a_module_that_was_killed_is_not_blamed_on_its_last_warning(tmp_path: Path):
    (tmp_path / "killed.py").write_text("import os, sys\nsys.stderr.write('a warning')\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(BoughError, match="`python -m killed` failed: it was ended by signal 9"):
        files.run_module("killed", PYTHONPATH=str(tmp_path))
