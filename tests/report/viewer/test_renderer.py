import os
import sys
import time
from pathlib import Path

import pytest

from bough.chat.builder import CallBuilder
from bough.chat.template import load_template
from bough.models.resolve import resolve
from bough.report.viewer.models import Renderer, RenderError
from tests.report.viewer.samples import trajectory

TINY = str(resolve("tiny"))


def test_a_question_is_answered_and_the_process_stays():
    renderer = Renderer()
    first = renderer.ask({"ask": "texts", "folder": TINY, "ids": [0, 1]})
    process = renderer._process
    assert len(first["texts"]) == 2 and renderer.ask({"ask": "texts", "folder": TINY, "ids": [0, 1]}) == first
    assert process is not None and renderer._process is process
    renderer.close()
    assert process.poll() is not None
    assert renderer.ask({"ask": "texts", "folder": TINY, "ids": []}) == {"texts": []}, "another one is started"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_call_is_rendered_without_torch():
    renderer, record = Renderer(), trajectory("a#0", ["look", "go"], info={})
    call = renderer.ask({"ask": "call", "folder": TINY, "record": record.model_dump(mode="json"), "turn": 1})["call"]
    builder = CallBuilder(load_template("tiny"))
    (built,) = (one for one in builder.build(record.start, record.turns, record.tools) if one.turn == 1)
    assert built.call is not None and call == built.call.model_dump(mode="json")
    assert renderer._process is not None
    libraries = Path(f"/proc/{renderer._process.pid}/maps").read_text()
    assert "tokenizers" in libraries and "libtorch" not in libraries


def test_what_is_no_tokenizer_is_said(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RenderError):
        Renderer().ask({"ask": "texts", "folder": str(tmp_path), "ids": []})


def test_what_takes_long_is_killed_and_the_next_question_is_answered(tmp_path: Path):
    os.mkfifo(tmp_path / "tokenizer.json")  # nobody ever writes into it
    renderer = Renderer()
    renderer.ask({"ask": "nothing"})
    renderer.answer_s = 0.5
    process = renderer._process
    with pytest.raises(RenderError, match="it takes too long"):
        renderer.ask({"ask": "texts", "folder": str(tmp_path), "ids": []})
    assert process is not None and process.poll() is not None
    renderer.answer_s = 60
    assert renderer.ask({"ask": "texts", "folder": TINY, "ids": []}) == {"texts": []}


def test_a_process_that_died_is_started_again():
    renderer = Renderer()
    renderer.ask({"ask": "nothing"})
    assert renderer._process is not None
    renderer._process.kill()
    renderer._process.wait()
    assert renderer.ask({"ask": "nothing"}) == {}


def test_it_ends_with_whoever_asked():
    renderer = Renderer()
    renderer.ask({"ask": "nothing"})
    process = renderer._process
    del renderer
    end = time.monotonic() + 30
    while process is not None and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert process is not None and process.poll() is not None


def test_nothing_in_the_current_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tokenizers.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    Renderer().ask({"ask": "texts", "folder": TINY, "ids": []})
    assert not (tmp_path / "ran").exists()
