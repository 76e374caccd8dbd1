"""A log that inspect_ai 0.3.285 wrote: two samples twice, packed with Zstandard."""

import json
import zipfile
from pathlib import Path

import pytest

from bough.data import compressed
from bough.data import lines as lines_module
from bough.data.formats import FORMATS
from bough.data.reader import Reader, read
from bough.errors import InputError
from bough.types import Trajectory
from tests.data.samples import FOLDER, rows

ARCHIVE, SAMPLES = FOLDER / "inspect.eval", rows("inspect_samples")


def test_samples_come_in_the_order_in_which_they_were_written():
    found = [one for one in read(ARCHIVE) if isinstance(one, Trajectory)]
    assert [(one.task.id, one.info["epoch"], one.success) for one in found] == [
        ("sums/one", 1, True),
        ("sums/2", 1, False),
        ("sums/one", 2, True),
        ("sums/2", 2, True),
    ]
    assert len({one.id for one in found}) == 4


def repacked(tmp_path: Path, **entries: bytes) -> Path:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name.replace("__", "/") + ".json", content)
    return path


def test_archives_of_older_versions_are_deflated_and_a_damaged_sample_is_one_bad_row(tmp_path: Path):
    head, sample = (json.dumps(value).encode() for value in ({"eval": SAMPLES[0]["eval"]}, SAMPLES[0]["sample"]))
    path = repacked(tmp_path, header=head, samples__a_epoch_1=b"{", samples__b_epoch_1=sample)
    reader = Reader(path, on_error="skip")
    assert list(reader) == [FORMATS["inspect"].read(SAMPLES[0])] and reader.skipped == {"damaged": 1}


def test_a_sample_larger_than_any_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for path in (ARCHIVE, repacked(tmp_path, header=b"{}", samples__a_epoch_1=b" " * 20000)):
        monkeypatch.setattr(lines_module.lines, "__defaults__", (9000,))
        with pytest.raises(InputError, match="larger than 0 MiB"):
            list(read(path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.eval", ARCHIVE.read_bytes()[:-100], "its ZIP archive has no table of contents"),
        ("a.eval", b"", "its ZIP archive has no table of contents"),
    ],
)
def test_a_log_that_is_cut_off_is_told_so(tmp_path: Path, name: str, content: bytes, said: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        list(read(tmp_path / name))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_python_unpacks_at_once_are_not_unpacked(tmp_path: Path, method: int):
    """A few kilobytes of bzip2 stand for gigabytes."""
    path = repacked(tmp_path, header=b"{}")
    with zipfile.ZipFile(path, "a", method) as archive:
        archive.writestr("samples/a_epoch_1.json", b" " * 1000)
    with pytest.raises(InputError, match="is not one that inspect_ai writes"):
        list(read(path))


def test_an_archive_of_many_samples_that_are_little_data_is_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compressed, "MAX_UNPACKED", 50_000)
    monkeypatch.setattr(compressed, "MAX_RATIO", 2)
    samples = {f"samples__{number}_epoch_1": b" " * 20_000 for number in range(5)}
    reader = Reader(repacked(tmp_path, header=b"{}", **samples), on_error="skip")
    assert list(reader) == [] and reader.skipped == {"damaged": 3}, "two samples, then the file as a whole"


def test_another_archive_is_no_log(tmp_path: Path):
    with pytest.raises(InputError, match=r"not an inspect_ai log: the archive contains word/document.json"):
        list(read(repacked(tmp_path, **{"word__document": b"{}"})))


@pytest.mark.parametrize("at", range(40, 15770, 1700))
def test_a_changed_byte_anywhere_is_an_error_or_nothing(tmp_path: Path, at: int):
    content = bytearray(ARCHIVE.read_bytes())
    content[at] ^= 0xFF
    (tmp_path / "a.eval").write_bytes(content)
    reader = Reader(tmp_path / "a.eval", on_error="skip")
    assert len(list(reader)) + reader.skipped.total() >= 1
