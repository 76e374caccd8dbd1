from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.files import build_once, cache_folder, keep_compiled_code

# A program that builds "thing" slowly, says when it is half done, and notes each build in a file.
SLOW_BUILDER = """
import sys, time
from pathlib import Path
from bough.files import build_once

def build(folder):
    (folder / "half").write_text("half")
    print("half done", flush=True)
    with Path(sys.argv[1]).open("a") as notes:
        notes.write("built\\n")
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    (folder / "whole").write_text("whole")

build_once("models/thing", build)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_both(folder: Path) -> None:
    (folder / "half").write_text("half")
    (folder / "whole").write_text("whole")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def start_slow_builder(notes: Path, until: Path) -> subprocess.Popen[str]:
    """A process that notes that it builds, and ends when the file `until` is there."""
    command = [sys.executable, "-c", SLOW_BUILDER, str(notes), str(until)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_cache_is_where_the_environment_says_else_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("BOUGH_CACHE", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "bough"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "bough"
    monkeypatch.setenv("BOUGH_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"


def test_a_folder_is_built_the_first_time_only(cache):
    drafts: list[Path] = []

    def build(draft: Path) -> None:
        drafts.append(draft)
        write_both(draft)

    folder = build_once("models/thing", build)
    assert build_once("models/thing", build) == folder == cache / "models" / "thing"
    assert len(drafts) == 1
    assert names_in(folder) == {"half", "whole"}


def test_a_build_that_fails_leaves_nothing_and_may_be_tried_again(cache):
    def fail(draft: Path) -> None:
        (draft / "half").write_text("half")
        raise BoughError("no luck")

    with pytest.raises(BoughError, match="no luck"):
        build_once("models/thing", fail)
    assert names_in(cache / "models") == {".thing.lock"}
    assert names_in(build_once("models/thing", write_both)) == {"half", "whole"}


def test_a_killed_builder_leaves_no_half_folder_and_its_draft_is_swept_away(cache, tmp_path):
    with start_slow_builder(tmp_path / "notes", tmp_path / "never") as builder:
        assert builder.stdout is not None and builder.stdout.readline() == "half done\n"
        builder.kill()
    left = names_in(cache / "models")
    assert "thing" not in left and any(name.endswith(".draft") for name in left)
    assert names_in(build_once("models/thing", write_both)) == {"half", "whole"}
    assert names_in(cache / "models") == {"thing", ".thing.lock"}


def test_of_two_processes_that_ask_at_once_one_builds_and_the_other_waits_for_it(cache, tmp_path):
    told = tmp_path / "told"
    with start_slow_builder(tmp_path / "notes", told) as first:
        assert first.stdout is not None and first.stdout.readline() == "half done\n"
        with start_slow_builder(tmp_path / "notes", told) as second:
            assert second.stderr is not None
            while "Waiting for another process that is making thing." not in second.stderr.readline():
                assert second.poll() is None, "it does not wait"
            told.touch()
            second.communicate()
        first.communicate()
    assert (first.returncode, second.returncode) == (0, 0)
    assert (tmp_path / "notes").read_text() == "built\n"
    assert names_in(cache / "models" / "thing") == {"half", "whole"}


def test_a_cache_that_cannot_be_written_is_a_sentence_with_a_way_out(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BoughError, match=r"cannot be made .* let BOUGH_CACHE name another folder"):
        build_once("models/thing", write_both)


VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def test_compiled_code_is_kept_in_the_cache_unless_the_user_has_chosen_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path))
    monkeypatch.setenv(VARIABLES[0], "/chosen")
    monkeypatch.setenv(VARIABLES[1], "")
    monkeypatch.delenv(VARIABLES[1])
    keep_compiled_code()
    assert os.environ[VARIABLES[0]] == "/chosen"
    assert Path(os.environ[VARIABLES[1]]) == tmp_path / "compiled" / "triton" and not (tmp_path / "inductor").exists()
    assert (tmp_path / "compiled" / "triton").is_dir()
