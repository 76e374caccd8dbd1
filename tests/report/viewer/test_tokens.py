from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.report.viewer import models as module
from bough.report.viewer import rendering
from bough.report.viewer.index import Index
from bough.report.viewer.models import Models, Renderer, tokens
from bough.report.viewer.records import MissingError
from tests.report.viewer.samples import call, trajectory, turn, write

Make = Callable[[Path], Index]


@pytest.fixture(autouse=True)
def _rendered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the process that opens tokenizers: it loads for seconds, and has tests of its own (test_renderer.py)."""

    def ask(renderer: Renderer, question: dict[str, Any]) -> dict[str, Any]:
        name, arguments = question["ask"], {key: value for key, value in question.items() if key != "ask"}
        return rendering.ASKED[name](**arguments)

    monkeypatch.setattr(Renderer, "ask", ask)


def test_the_recorded_tokens_with_what_the_call_before_had_already(folder: Path, make_index: Make):
    index = make_index(folder)
    found = tokens(index, Models(index, None), "07-sampled/trajectories.jsonl:1", 1)
    first = tokens(index, Models(index, None), "07-sampled/trajectories.jsonl:1", 0)
    assert "".join(found["completion"]["texts"]) == "take mug 1"
    assert found["completion"]["logprobs"][:2] == [-0.25, -0.5]
    assert found["source"] == "recorded" and found["model"] == "07-sampled/model"
    assert found["shared"] == len(first["prompt"]["ids"]) + len(first["completion"]["ids"])
    assert "".join(found["prompt"]["texts"][found["shared"] :]) == " On the shelf you see a mug."


def test_what_the_trainer_says_to_the_same_tokens_where_it_was_asked(folder: Path, make_index: Make):
    index = make_index(folder)
    first, second = (
        tokens(index, Models(index, None), "07-sampled/trajectories.jsonl:1", turn)["completion"] for turn in (0, 1)
    )
    assert first["trained_logprobs"][:3] == [-0.25, -0.52, -0.75] and second["trained_logprobs"] is None


@pytest.mark.parametrize(
    "broken", ["[]", "{", '{"sampled#0": 3}', '{"sampled#0": {"0": [-1.0]}}', '{"sampled#0": {"0": "x"}}']
)
def test_a_file_of_another_shape_is_no_answer(folder: Path, make_index: Make, broken: str):
    (folder / "07-sampled/rescored.json").write_text(broken)
    index = make_index(folder)
    found = tokens(index, Models(index, None), "07-sampled/trajectories.jsonl:1", 0)
    assert found["completion"]["trained_logprobs"] is None


def test_without_the_model_ids_are_shown_and_why(tmp_path: Path, make_index: Make):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", [], turns=[turn("look", call=call([1, 2], [3]))], info={}))
    index = make_index(tmp_path / "run")
    found = tokens(index, Models(index, None), "a.jsonl:1", 0)
    assert found["completion"] == {"ids": [3], "texts": None, "logprobs": None, "trained_logprobs": None}
    assert found["why_no_text"] == "no model is named; start the viewer with --model NAME"


def test_a_demonstration_gets_the_tokens_that_training_would_make(tmp_path: Path, make_index: Make):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look", "go to shelf 1"], info={}))
    index = make_index(tmp_path / "run")
    found = tokens(index, Models(index, "tiny"), "a.jsonl:1", 1)
    assert "ACTION: go to shelf 1" in "".join(found["completion"]["texts"])
    assert "ACTION: look" in "".join(found["prompt"]["texts"])
    assert found["source"] == "rendered with the template of tiny"
    missing = tokens(index, Models(index, None), "a.jsonl:1", 1)["missing"]
    assert "none can be rendered" in missing


def test_a_very_long_prompt_loses_its_beginning(tmp_path: Path, make_index: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_PROMPT", 4)
    turns = [turn("a", call=call([1, 2, 3], [4])), turn("b", call=call([1, 2, 3, 4, 5, 6], [7]))]
    write(tmp_path / "run/a.jsonl", trajectory("a#0", [], turns=turns))
    index = make_index(tmp_path / "run")
    found = tokens(index, Models(index, None), "a.jsonl:1", 1)
    assert found["prompt"]["ids"] == [3, 4, 5, 6] and found["prompt"]["left_out"] == 2
    assert found["shared"] == 2


def test_a_turn_that_is_not_there_is_said(folder: Path, make_index: Make):
    index = make_index(folder)
    for number in (-1, 2):
        with pytest.raises(MissingError, match="no such turn"):
            tokens(index, Models(index, None), "07-sampled/trajectories.jsonl:1", number)
