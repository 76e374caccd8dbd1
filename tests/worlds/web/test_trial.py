from pathlib import Path

import pytest

from bough.worlds.web.browser import find
from bough.worlds.web.setup import trouble

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
