"""A kill loses no finished call."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bough.data.reader import read
from bough.engines.server.chat import RefusedError
from bough.engines.server.store import CALLS, TRAJECTORIES, SessionOutcome, Store, read_call, write_call
from bough.errors import InputError
from bough.types import Trajectory
from tests.blocks import ROOT
from tests.engines.server.fake import FakeEngine, make_recorder
from tests.engines.server.test_session import ask
from tests.engines.server.test_trajectory import played

KILLED = """
import asyncio, sys
from pathlib import Path
from bough.engines.server.store import Store
from tests.engines.server.fake import FakeEngine, make_recorder
from tests.engines.server.test_session import ask

async def main():
    recorder = make_recorder(FakeEngine(), Store(Path(sys.argv[1])))
    _, first = await recorder.answer("open", ask("one"))
    await recorder.answer("open", ask("one", first.content, "two"))
    print("answered", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def recorded(folder: Path) -> list[Trajectory]:
    return [record for record in read(folder / TRAJECTORIES) if isinstance(record, Trajectory)]


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / CALLS).read_text().splitlines()]


async def test_a_killed_server_resumes_its_open_sessions(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    server = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert server.stdout is not None and server.stdout.readline() == "answered\n"
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()
    with (tmp_path / CALLS).open("a") as journal:
        journal.write('{"session": "open", "numb')  # what was being written when it was killed
    recorder = make_recorder(engine := FakeEngine(), Store(tmp_path))
    assert recorder.open_sessions == 1
    await recorder.answer("open", ask("one", "reply 1", "two", "reply 2", "three"))
    assert [message.content for message in engine.asked[0]["messages"]][-1] == "three"
    await recorder.end("open", SessionOutcome(success=True))
    await recorder.close()
    [trajectory] = recorded(tmp_path)
    assert [m.content for m in trajectory.messages] == ["one", "reply 1", "two", "reply 2", "three", "reply 1"]
    call = trajectory.turns[1].call
    assert call is not None and bytes(call.prompt_ids).decode() == "user:one\nreply 1\nuser:two\n"
    assert lines(tmp_path) == [], "nothing is open any more"


async def test_a_session_that_ended_just_before_a_kill_is_not_opened_again(tmp_path: Path):
    recorder = make_recorder(FakeEngine(), store := Store(tmp_path))
    await recorder.answer("done", ask("one"))
    kept = (tmp_path / CALLS).read_bytes()
    await recorder.end("done", SessionOutcome())
    await recorder.close()
    (tmp_path / CALLS).write_bytes(kept)
    del store
    again = make_recorder(FakeEngine(), Store(tmp_path))
    assert again.open_sessions == 0
    with pytest.raises(RefusedError, match="session done is closed"):
        await again.answer("done", ask("one"))
    await again.close()
    assert len(recorded(tmp_path)) == 1


async def test_a_call_is_on_the_disk_before_it_is_answered(tmp_path: Path):
    recorder = make_recorder(FakeEngine(), Store(tmp_path))
    await recorder.answer("s", ask("one"))
    assert [line["session"] for line in lines(tmp_path)] == ["s"]
    await recorder.answer(None, ask("alone"))
    assert [record.stop for record in recorded(tmp_path)] == ["no_session"]
    assert len(lines(tmp_path)) == 1, "a single request needs no journal"
    await recorder.close()


def test_calls_are_written_from_where_they_differ_and_read_back_whole():
    session = played(["one"], ["one", "{1}", "two"], ["aside"])
    before = None
    for call in [*session.calls, replace(session.calls[0], error="malformed")]:
        row = json.loads(json.dumps(write_call(call, before)))
        assert read_call(row, before) == call
        before = call
    assert write_call(session.calls[1], session.calls[0])["shared"] == len(b"user:one\nreply 1")


async def test_ended_sessions_are_removed_from_the_journal(tmp_path: Path):
    recorder = make_recorder(FakeEngine(), Store(tmp_path))
    await recorder.answer("open", ask("one"))
    for number in range(3):
        await recorder.answer(f"s{number}", ask("one"))
        await recorder.end(f"s{number}", SessionOutcome())
    await recorder.close()
    assert [line["session"] for line in lines(tmp_path)] == ["open"]
    assert make_recorder(FakeEngine(), Store(tmp_path)).open_sessions == 1
    assert len(recorded(tmp_path)) == 3


def test_two_servers_do_not_share_a_folder(tmp_path: Path):
    store = Store(tmp_path)
    with pytest.raises(InputError, match="another process is writing it"):
        Store(tmp_path)
    asyncio.run(store.close())
    asyncio.run(Store(tmp_path).close())


async def test_what_a_full_disk_refused_is_not_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The client has read that it failed, and ends the session again."""

    def full(file: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    recorder = make_recorder(FakeEngine(), Store(tmp_path))
    await recorder.answer("s", ask("one"))
    await recorder.answer("t", ask("one"))
    with monkeypatch.context() as patched:
        patched.setattr("bough.data.writer._write_all", full)
        with pytest.raises(RefusedError, match="No space left"):
            await recorder.end("s", SessionOutcome(success=True))
        for name in ("t", None):
            with pytest.raises(RefusedError, match="No space left") as caught:
                await recorder.answer(name, ask("two"))
            assert caught.value.status == 507
        with pytest.raises(RefusedError, match="one of its calls could not be written"):
            await recorder.answer("t", ask("three"))
    await recorder.end("s", SessionOutcome(success=True))
    await recorder.close()
    assert [record.id for record in recorded(tmp_path)] == ["s"]
    assert [line["session"] for line in lines(tmp_path)] == ["t"]


async def test_a_line_that_cannot_be_written_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorder = make_recorder(FakeEngine(), store := Store(tmp_path))
    real = store._journal.write
    monkeypatch.setattr(store._journal, "write", lambda row: real(row) if row["session"] != "b" else [][row])
    store._disk.submit(time.sleep, 0.2)  # all three are one batch
    answers = await asyncio.gather(*(recorder.answer(name, ask("one")) for name in "abc"), return_exceptions=True)
    assert isinstance(answers[1], RefusedError) and answers[1].status == 507
    assert [line["session"] for line in lines(tmp_path)] == ["a", "c"]


async def test_a_journal_that_cannot_be_compacted_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    recorder = make_recorder(FakeEngine(), Store(tmp_path))
    await recorder.answer("s", ask("one"))
    monkeypatch.setattr("bough.engines.server.store.replacing", full)
    await recorder.close()
    assert [line["session"] for line in lines(tmp_path)] == ["s"]


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"parent": 0},
        {"messages": 7},
        {"tokens": [1]},
        {"shared": -3},
        {"call": {"prompt_ids": "x"}},
        {"tools": "x"},
    ],
)
def test_a_damaged_call_in_the_journal_is_named(tmp_path: Path, damage: dict[str, object]):
    row = {"session": "s", **write_call(played(["one"]).calls[0], None), **damage}
    (tmp_path / CALLS).write_text(json.dumps(row if damage else {"number": 1}) + "\n")
    with pytest.raises(InputError, match=r"calls\.jsonl:1 is damaged"):
        make_recorder(FakeEngine(), Store(tmp_path))


def test_calls_after_one_that_could_not_be_written_are_left_out(tmp_path: Path):
    [first, second, third] = played(["one"], ["two"], ["three"]).calls
    rows = [{"session": "s", **write_call(call, None)} for call in (first, third)]
    (tmp_path / CALLS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = Store(tmp_path).open_sessions()
    assert [call.number for call in found["s"]] == [0] and second.number == 1


@pytest.mark.parametrize("name", [CALLS, TRAJECTORIES])
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_link_in_the_folder_is_neither_cut_nor_written_through(tmp_path: Path, name: str, torn: bool, link: str):
    folder, mine = tmp_path / "from_elsewhere", tmp_path / "mine.jsonl"
    folder.mkdir()
    mine.write_text('{"precious": 1}\n' + ("a last line without an end" if torn else ""))
    before = mine.read_bytes()
    getattr(folder / name, link)(mine)
    with pytest.raises(InputError, match=rf"{name}: .*(it is a symbolic link|a second name).*--follow-links"):
        Store(folder)
    assert mine.read_bytes() == before and (folder / name).samefile(mine)


async def test_links_that_the_user_made_are_followed_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, mine = tmp_path / "folder", tmp_path / "mine.jsonl"
    folder.mkdir()
    mine.touch()
    (folder / TRAJECTORIES).symlink_to(mine)
    monkeypatch.setenv("BOUGH_FOLLOW_LINKS", "1")
    recorder = make_recorder(FakeEngine(), Store(folder))
    await recorder.answer(None, ask("one"))
    await recorder.close()
    assert len(mine.read_text().splitlines()) == 1 and (folder / TRAJECTORIES).is_symlink()
