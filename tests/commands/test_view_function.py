"""`bough.view` serves on loopback in a thread; `bough.export_page` writes one file."""

import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

import bough
from tests.report.viewer.samples import trajectory, write


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]), trajectory("a#1", ["go"], False))
    return tmp_path / "run"


def test_a_folder_is_served_until_the_viewer_is_closed(run: Path):
    with bough.view(run) as viewer:
        assert viewer.address.startswith("http://127.0.0.1:") and viewer.address in repr(viewer)
        end = time.monotonic() + 120
        while b'"trajectory":2' not in (body := urlopen(f"{viewer.address}api/overview", timeout=60).read()):
            assert time.monotonic() < end, body
            time.sleep(0.1)
    with pytest.raises(URLError):
        urlopen(viewer.address, timeout=2)


def test_a_page_is_written_into_one_file(run: Path, tmp_path: Path):
    file = tmp_path / "page.html"
    written = bough.export_page(run, file, max_records=1)
    assert (written.records, written.left_out) == (1, 1) and file.read_text().startswith("<!doctype html>")
    with pytest.raises(bough.InputError, match="exists"):
        bough.export_page(run, file)
