import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from bough.cli import main
from tests.report.viewer.samples import pair, trajectory, write


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]), trajectory("a#1", ["go"], False), pair(["a"], ["b"]))
    return tmp_path / "run"


def test_a_page_is_exported_into_one_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "page.html"
    assert main(["view", str(run), "--export", str(file), "--max-records", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 records" in out and "1 record is not included" in out
    assert file.read_text().startswith("<!doctype html>")
    assert main(["view", str(run), "--export", str(file)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["view", str(run), "--export", str(file), "--overwrite"]) == 0


def test_another_address_than_loopback_is_refused_without_the_flag(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["view", str(run), "--host", "0.0.0.0"]) == 2
    assert "--allow-remote" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["view", str(tmp_path / "missing")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(run: Path):
    command = [sys.executable, "-m", "bough", "view", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(2)]
        address = lines[1]
        assert address.startswith("http://127.0.0.1:") and "token" not in address
        end = time.monotonic() + 120
        while b'"trajectory":2' not in (body := urlopen(f"{address}api/overview", timeout=60).read()):
            assert time.monotonic() < end, body
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait(120)
