import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.errors import BoughError
from bough.files import (
    drafting,
    locked,
    open_file,
    open_own,
    put_in_place,
    read_json,
    read_small,
    remove,
    replacing,
    write_atomically,
    write_json,
)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed to the disk and what is renamed, in order; without the process's number."""
    happened: list[str] = []
    rename = Path.rename

    def flushed(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        happened.append(f"flush {path.name}".replace(f".{os.getpid()}", ""))

    def renamed(path: Path, target: Path) -> Path:
        happened.append(f"rename to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "rename", renamed)
    return happened


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_is_on_the_disk_before_it_is_renamed_and_its_folder_after(tmp_path: Path, events: list[str]):
    write_atomically(tmp_path / "a.json", "new")
    assert events == ["flush .a.json.json", "rename to a.json", f"flush {tmp_path.name}"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_folder_is_on_the_disk_before_it_is_renamed_and_its_parent_after(tmp_path: Path, events: list[str]):
    draft = tmp_path / "draft"
    (draft / "inner").mkdir(parents=True)
    (draft / "inner" / "a.txt").write_text("new")
    put_in_place(draft, tmp_path / "final")
    assert events == [
        "flush inner", "flush a.txt", "flush draft", "rename to final", f"flush {tmp_path.name}",
    ]  # fmt: skip


def test_json_is_readable_by_people(tmp_path: Path):
    write_json(tmp_path / "new/a.json", {"name": "été"})
    assert (tmp_path / "new/a.json").read_text() == '{\n  "name": "été"\n}\n'


@pytest.mark.parametrize(("content", "stays"), [("old", True), ("new", False)])
def test_a_folder_with_the_same_files_stays(content: str, stays: bool, tmp_path: Path):
    draft, final = tmp_path / ".draft", tmp_path / "final"
    for folder, text in ((final, "old"), (draft, content)):
        (folder / "deeper").mkdir(parents=True)
        (folder / "deeper" / "file").write_text(text)
    before = (final / "deeper" / "file").stat().st_ino
    put_in_place(draft, final)
    assert ((final / "deeper" / "file").stat().st_ino == before) is stays
    assert (final / "deeper" / "file").read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize("name", ["more", "link"])
def test_a_folder_with_one_file_more_or_a_link_is_another(name: str, tmp_path: Path):
    draft, final = tmp_path / ".draft", tmp_path / "final"
    final.mkdir()
    draft.mkdir()
    if name == "link":
        (final / name).symlink_to("there")
        (draft / name).symlink_to("elsewhere")
    else:
        (draft / name).touch()
    put_in_place(draft, final)
    assert name == "more" or (final / name).readlink() == Path("elsewhere")
    assert [path.name for path in final.iterdir()] == [name]


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o770, 0o660), (0o700, 0o600)])
def test_whoever_may_read_a_folder_may_read_the_weights_in_it(folder: int, file: int, tmp_path: Path):
    draft = tmp_path / "draft"
    (draft / "inner").mkdir(parents=True)
    draft.chmod(folder)
    (draft / "inner" / "model.safetensors").touch(0o600)  # as safetensors 0.8 makes its files
    put_in_place(draft, tmp_path / "final")
    assert (tmp_path / "final/inner/model.safetensors").stat().st_mode & 0o777 == file


def test_a_folder_is_put_in_place_with_links_that_lead_nowhere(tmp_path):
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "link").symlink_to("/no/such/file")
    put_in_place(draft, tmp_path / "final")
    assert (tmp_path / "final" / "link").is_symlink() and not draft.exists()


def test_a_link_is_removed_and_what_it_points_to_stays(tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("")
    (tmp_path / "folder").mkdir()
    for link in ("link", "folder/link", ".final.old", "final"):
        (tmp_path / link).symlink_to(tmp_path / "other")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("link", "folder", "loop", "nothing"):
        remove(tmp_path / name)
    (tmp_path / ".draft").mkdir()
    put_in_place(tmp_path / ".draft", tmp_path / "final")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final", "other"]
    assert (tmp_path / "other" / "precious").exists() and not (tmp_path / "final").is_symlink()


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path):
    lock = tmp_path / "new" / ".lock"
    with locked(lock, wait=False), pytest.raises(BlockingIOError), locked(lock, wait=False):
        pass
    with locked(lock, wait=True):
        pass


def test_only_regular_files_are_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for path in (tmp_path / "fifo", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(OSError, match="it is not a regular file"):
            open_file(path)
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        open_file(tmp_path)
    (tmp_path / "file").write_text("text")
    with open_file(tmp_path / "file") as file:
        assert file.read() == b"text"


def test_a_small_file_is_small(tmp_path: Path):
    (tmp_path / "a").write_text("[" * 5000)
    assert read_small(tmp_path / "a", 5000) == "[" * 5000
    with pytest.raises(OSError, match="it is larger than 4 KiB"):
        read_small(tmp_path / "a", 4999)
    (tmp_path / "a").write_text("[" * 500_000)  # how deep is too deep differs between versions of Python
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "a")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_draft_that_cannot_be_written_is_removed_and_its_final_name_is_said(number: int, tmp_path: Path):
    draft, final = tmp_path / ".final", tmp_path / "final"
    draft.mkdir()
    (draft / "half").write_bytes(b"half")
    with pytest.raises(BoughError, match=f"final: cannot be written: {os.strerror(number)}"), drafting(draft, final):
        raise OSError(number, os.strerror(number))
    assert list(tmp_path.iterdir()) == []


def test_safetensors_on_a_full_disk_are_no_defect_but_other_errors_are(tmp_path: Path):
    from safetensors import SafetensorError

    draft, final = tmp_path / ".final", tmp_path / "final"
    with pytest.raises(BoughError, match=r"final: cannot be written: .*No space"), drafting(draft, final):
        raise SafetensorError("Error while serializing: No space left on device")
    with pytest.raises(KeyError), drafting(draft, final):
        raise KeyError("x")


def test_a_file_is_replaced_when_its_writer_is_done_and_stays_when_it_fails(tmp_path: Path):
    path = tmp_path / "new" / "a.jsonl.zst"
    with replacing(path) as draft:
        assert draft.suffix == ".zst" and draft.parent == path.parent
        draft.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first"
    for error in (RuntimeError("broken"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            _fail_half_way(path, error)
    assert path.read_text() == "first"
    assert [file.name for file in path.parent.iterdir()] == ["a.jsonl.zst"]


def _fail_half_way(path: Path, error: BaseException) -> None:
    with replacing(path) as draft:
        draft.write_text("half")
        raise error


def test_a_lock_ends_though_a_program_that_is_being_started_has_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened: list[int] = []
    open_before = os.open

    def open_and_fork(*given: Any) -> int:
        file = open_before(*given)
        opened.append(os.dup(file))  # as between fork and exec
        return file

    monkeypatch.setattr(os, "open", open_and_fork)
    for _ in range(2):
        with locked(tmp_path / "lock", wait=False):
            pass
    for file in opened:
        os.close(file)


def test_a_link_in_the_place_of_a_draft_or_a_lock_is_not_written_through(tmp_path: Path):
    folder, mine = tmp_path / "from_elsewhere", tmp_path / "mine"
    folder.mkdir()
    mine.write_text("precious")
    (folder / f".a.json.{os.getpid()}.json").symlink_to(mine)
    write_atomically(folder / "a.json", "new")
    assert mine.read_text() == "precious" and (folder / "a.json").read_text() == "new"
    assert not (folder / "a.json").is_symlink()
    (folder / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="symbolic"), locked(folder / ".lock", wait=False):
        pass
    assert not (tmp_path / "new").exists()


def test_a_draft_that_a_killed_process_left_is_not_continued(tmp_path: Path):
    with replacing(tmp_path / "a.jsonl") as left:
        left.write_text("old\n")
    left.write_text("left by a killed process of the same number\n")
    with replacing(tmp_path / "a.jsonl") as draft, draft.open("a") as file:
        file.write("new\n")
    assert draft == left and (tmp_path / "a.jsonl").read_text() == "new\n"


def test_what_a_draft_s_name_links_to_is_not_written(tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (tmp_path / ".final").symlink_to(mine)
    with drafting(tmp_path / ".final", tmp_path / "final"):
        (tmp_path / ".final").mkdir()
        (tmp_path / ".final" / "file").write_text("new")
        put_in_place(tmp_path / ".final", tmp_path / "final")
    assert list(mine.iterdir()) == [] and (tmp_path / "final" / "file").read_text() == "new"


def test_a_file_is_opened_for_writing_only_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = tmp_path / "mine"
    mine.write_text("precious\n")
    (tmp_path / "link").symlink_to(mine)
    (tmp_path / "second").hardlink_to(mine)
    (tmp_path / "nowhere").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("link", "symbolic link"), ("nowhere", "symbolic link"), ("second", "second name")):
        with pytest.raises(OSError, match=f"{words}.*--follow-links"):
            open_own(tmp_path / name)
    with pytest.raises(OSError, match="not a regular file"):
        open_own(tmp_path / "pipe")
    assert mine.read_text() == "precious\n" and not (tmp_path / "new").exists()
    monkeypatch.setenv("BOUGH_FOLLOW_LINKS", "1")
    for name in ("link", "second", "nowhere", "new"):
        os.close(open_own(tmp_path / name))


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(pipe, "new")
    assert pipe.is_fifo()
