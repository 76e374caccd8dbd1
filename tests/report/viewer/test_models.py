import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.chat.template import CallBuilder, load_template
from bough.models.resolve import resolve
from bough.report.viewer import models as module
from bough.report.viewer.index import Index
from bough.report.viewer.models import Models, Renderer, tokens
from bough.report.viewer.records import MissingError
from tests.report.viewer.samples import call, trajectory, turn, write

Make = Callable[[Path], Index]
TINY = Path(resolve("tiny"))
NOT_NAMED = "no model is named; start the viewer with --model NAME"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer()


def test_every_token_has_its_text_and_together_they_are_the_whole(renderer: Renderer):
    from tokenizers import Tokenizer

    text = "go to shelf 1 – größer 你好 🙂"
    ids = Tokenizer.from_file(str(TINY / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    texts = renderer.ask(TINY, ids=list(ids))["texts"]
    assert len(texts) == len(ids) and "".join(texts) == text
    assert renderer.ask(TINY, ids=[10**6]) == {"texts": None}, "another model's tokens get no wrong texts"


def test_what_cannot_be_read_is_said_and_what_takes_too_long_is_not_asked_again(
    tmp_path: Path, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "cannot be read" in renderer.ask(tmp_path, ids=[1])["missing"]
    renderer._process.kill()
    assert "too long" in renderer.ask(tmp_path, ids=[1])["missing"]
    monkeypatch.setattr(module, "MAX_WAIT_S", 0)
    assert "too long" in renderer.ask(tmp_path / "waited", ids=[])["missing"]
    monkeypatch.undo()
    assert renderer.ask(TINY, ids=[]) == {"texts": []}
    assert "too long" in renderer.ask(tmp_path, ids=[1])["missing"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_call_is_rendered_without_torch_and_without_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "tokenizers.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    renderer, record = Renderer(), trajectory("a#0", ["look", "go"], info={})
    found = renderer.ask(TINY, record=record.model_dump(mode="json"), turn=1)
    builder = CallBuilder(load_template("tiny"))
    (built,) = (one for one in builder.build(record.start, record.turns, record.tools) if one.turn == 1)
    assert built.call is not None and found["call"] == built.call.model_dump(mode="json")
    libraries = Path(f"/proc/{renderer._process.pid}/maps").read_text()
    assert "tokenizers" in libraries and "libtorch" not in libraries
    assert not (tmp_path / "ran").exists()
    process = renderer._process
    del renderer
    assert process.poll() is not None, "it ends with whoever asked"


def named(folder: Path, name: str) -> None:
    write(folder / "a/a.jsonl", trajectory("a#0", ["look"], info={}))
    (folder / "a/config.yaml").write_text(json.dumps({"model": name}))


def test_a_name_in_a_file_means_a_folder_inside_and_nothing_else(
    tmp_path: Path, make_index: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "empty"))
    for place in ("outside", "run/sft/final"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "tokenizer.json").write_text("{}")
    record = trajectory("a#0", ["look"], info={})
    for name, found in (
        ("runs/run/sft/final", tmp_path / "run/sft/final"),
        ("sft/final", tmp_path / "run/sft/final"),
        ("/gone/run/sft/final", tmp_path / "run/sft/final"),
        (str(tmp_path / "outside"), None),
        ("../outside", None),
        ("org/model", None),
        ("smollm2", None),
    ):
        named(tmp_path / "run", name)
        assert Models(make_index(tmp_path / "run"), None).of("a/a.jsonl", record) == (name, found)
    assert not (tmp_path / "empty").exists()


def test_scripted_agents_have_no_model_and_the_users_word_comes_first(tmp_path: Path, make_index: Make):
    named(tmp_path / "run", "expert")
    index, record = make_index(tmp_path / "run"), trajectory("a#0", ["look"], info={"agent": "random"})
    assert Models(index, None).of("a/a.jsonl", record) == (None, None)
    assert Models(index, "tiny").of("a/a.jsonl", record) == ("tiny", TINY)


def test_the_recorded_tokens_with_what_the_call_before_had_already(folder: Path, make_index: Make):
    index = make_index(folder)
    models = Models(index, None)
    first, found = (tokens(index, models, "07-sampled/trajectories.jsonl:1", turn) for turn in (0, 1))
    assert "".join(found["completion"]["texts"]) == "take mug 1"
    assert found["completion"]["logprobs"][:2] == [-0.25, -0.5]
    assert found["source"] == "recorded" and found["model"] == "07-sampled/model"
    assert found["shared"] == len(first["prompt"]["ids"]) + len(first["completion"]["ids"])
    assert "".join(found["prompt"]["texts"][found["shared"] :]) == " On the shelf you see a mug."
    # What the trainer says to the same tokens, where it was asked.
    assert first["completion"]["trained_logprobs"][:3] == [-0.25, -0.52, -0.75]
    assert found["completion"]["trained_logprobs"] is None
    for number in (-1, 2):
        with pytest.raises(MissingError, match="no such turn"):
            tokens(index, models, "07-sampled/trajectories.jsonl:1", number)


@pytest.mark.parametrize(
    "broken", ["[]", "{", '{"sampled#0": 3}', '{"sampled#0": {"0": [-1.0]}}', '{"sampled#0": {"0": "x"}}']
)
def test_a_file_of_another_shape_is_no_answer(tmp_path: Path, make_index: Make, broken: str):
    turns = [turn("look", call=call([1, 2], [3, 4]))]
    write(tmp_path / "run/a.jsonl", trajectory("sampled#0", [], turns=turns, info={}))
    (tmp_path / "run/rescored.json").write_text(broken)
    index = make_index(tmp_path / "run")
    found = tokens(index, Models(index, None), "a.jsonl:1", 0)
    assert found["completion"] == {"ids": [3, 4], "texts": None, "logprobs": None, "trained_logprobs": None}
    assert found["why_no_text"] == NOT_NAMED


def test_a_demonstration_gets_the_tokens_that_training_would_make(tmp_path: Path, make_index: Make):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look", "go to shelf 1"], info={}))
    index = make_index(tmp_path / "run")
    found = tokens(index, Models(index, "tiny"), "a.jsonl:1", 1)
    assert "ACTION: go to shelf 1" in "".join(found["completion"]["texts"])
    assert "ACTION: look" in "".join(found["prompt"]["texts"])
    assert found["source"] == "rendered with the template of tiny"
    assert NOT_NAMED in tokens(index, Models(index, None), "a.jsonl:1", 1)["missing"]


def test_a_very_long_prompt_loses_its_beginning(tmp_path: Path, make_index: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_PROMPT", 4)
    turns = [turn("a", call=call([1, 2, 3], [4])), turn("b", call=call([1, 2, 3, 4, 5, 6], [7]))]
    write(tmp_path / "run/a.jsonl", trajectory("a#0", [], turns=turns))
    index = make_index(tmp_path / "run")
    found = tokens(index, Models(index, None), "a.jsonl:1", 1)
    assert found["prompt"]["ids"] == [3, 4, 5, 6] and found["prompt"]["left_out"] == 2
    assert found["shared"] == 2
