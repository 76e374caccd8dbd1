import pickle
from pathlib import Path

import pytest

from bough.data.lines import KINDS, not_data
from bough.data.reader import read
from bough.errors import InputError


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_pickle_is_not_loaded(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(InputError, match="a Python pickle, which runs code when it is loaded"):
        list(read(tmp_path / "a.jsonl"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("magic", KINDS)
def test_a_file_of_another_kind_is_told_what_it_is_and_what_would_be_read(tmp_path: Path, magic: bytes):
    (tmp_path / "a.jsonl").write_bytes(magic + b" and more\n" * 3)
    with pytest.raises(InputError) as error:
        list(read(tmp_path / "a.jsonl"))
    assert str(error.value).startswith(f"{tmp_path / 'a.jsonl'}: the file is {KINDS[magic]}. Bough reads JSON Lines")


def test_text_may_be_data():
    assert not_data(b'{"messages": []}') is None
    assert not_data("日本".encode()) is None
    assert not_data(b"abc\0def") is not None
