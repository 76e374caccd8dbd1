import json
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.evaluation.results import Results
from tests.evaluation.samples import result


def results(**more: Any) -> Results:
    return Results(environment="counting", seed=0, models=[result("a", "1 0 ?", reward=0.5, stop="done")], **more)


def test_what_is_written_is_read_again(tmp_path: Path):
    written = results(options={"n": 3}, attempts=2, stop_width=0.1, reports={"a": {"tasks": 3}})
    written.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == Results.read(tmp_path) == written
    assert json.loads((tmp_path / "results.json").read_text())["bough"] == "evaluation/1"


def test_lost_episodes_can_be_taken_for_successes_or_failures():
    model = result("a", "1 x 0")
    assert [row.success for row in model.assuming(True).outcomes] == [True, False, True]
    assert [(row.task, row.digest) for row in model.assuming(False).outcomes][-1] == ("t1", "d1")
    assert model.assuming(False).lost == [] and len(model.outcomes) == 2, "the result itself is as it was"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "these do not"),
        ('{"bough": "evaluation/2"}', "these do not"),
        ('{"bough": "evaluation/1", "environment": "x", "seed": 0, "models": [{"name": "a"}]}', "models.0.outcomes"),
    ],
)
def test_what_is_no_result_file_is_named(text: str, complaint: str, tmp_path: Path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError) as caught:
        Results.read(tmp_path / "a.json")
    assert complaint in str(caught.value) and "a.json" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"results\.json: there is no such file"):
        Results.read(tmp_path)
