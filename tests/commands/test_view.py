import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

import bough
from bough.cli import main
from tests.report.viewer.samples import pair, trajectory, write


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]), trajectory("a#1", ["go"], False), pair(["a"], ["b"]))
    return tmp_path / "run"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for temporary files, empty again after the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("temporary")
def test_a_page_is_exported_into_one_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "page.html"
    assert main(["view", str(run), "--export", str(file), "--max-records", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 records" in out and "1 record is not included" in out
    assert file.read_text().startswith("<!doctype html>")
    assert main(["view", str(run), "--export", str(file)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    written = bough.export_page(run, file, max_records=1, overwrite=True)
    assert (written.records, written.left_out) == (2, 1)


def test_another_address_than_loopback_is_refused_without_the_flag(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["view", str(run), "--host", "0.0.0.0"]) == 2
    assert "--allow-remote" in capsys.readouterr().err


def wait_for(address: str) -> None:
    end = time.monotonic() + 120
    while b'"trajectory":2' not in (body := urlopen(f"{address}api/overview", timeout=60).read()):
        assert time.monotonic() < end, body
        time.sleep(0.1)


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_command_serves_until_it_is_interrupted(run: Path, number: int):
    command = [sys.executable, "-u", "-m", "bough", "view", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = [process.stdout.readline().strip() for _ in range(2)][1]
        assert address.startswith("http://127.0.0.1:") and "token" not in address
        wait_for(address)
        process.send_signal(number)


@pytest.mark.usefixtures("temporary")
def test_a_folder_is_served_until_the_viewer_is_closed(run: Path):
    with bough.view(run) as viewer:
        assert viewer.address.startswith("http://127.0.0.1:") and viewer.address in repr(viewer)
        wait_for(viewer.address)
    with pytest.raises(URLError):
        urlopen(viewer.address, timeout=2)
