import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.report.viewer.index import Index
from bough.report.viewer.records import group_credit, stage_settings, trained_with, trajectory_credit
from tests.report.viewer.samples import group, trajectory, turn, write

Make = Callable[[Path], Index]


def trained(folder: Path, **settings: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / "config.yaml").write_text(json.dumps(settings))
    return folder


def test_the_run_that_read_a_file_is_found_wherever_it_was_started(tmp_path: Path, make_index: Make):
    root = tmp_path / "runs/demo"
    write(root / "01-demos/a.jsonl", trajectory("a#0", ["look"]))
    trained(root / "02-sft", train_file="runs/demo/01-demos/a.jsonl", seed=1)
    index = make_index(root)
    assert trained_with(index, "01-demos/a.jsonl")[1] == "02-sft"
    assert trained_with(index, "01-demos/b.jsonl") == (None, "")
    for named, found in (
        (str(root / "01-demos/a.jsonl"), True),
        ("demo/01-demos/a.jsonl", True),
        ("a.jsonl", False),
        ("/x/a.jsonl", False),
        ("/moved/demo/01-demos/a.jsonl", True),
        ("/moved/other/01-demos/a.jsonl", False),
    ):
        (root / "02-sft/config.yaml").write_text(json.dumps({"train_file": named}))
        assert (trained_with(index, "01-demos/a.jsonl")[0] is not None) is found


def test_the_weights_are_those_of_the_run(tmp_path: Path, make_index: Make):
    turns = [turn("a", reward=1.0), turn("b", reward=3.0), turn("c", reward=2.0, trained=False)]
    record = trajectory("a#0", [], turns=turns)
    write(tmp_path / "run/data/a.jsonl", record)
    folder = trained(tmp_path / "run/sft", train_file="data/a.jsonl")
    index = make_index(tmp_path / "run")
    found = trajectory_credit(index, "data/a.jsonl", record)
    assert (found.weights, found.source) == ([1.0, 1.0, 0.0], "weights as sft used them")
    (folder / "config.yaml").write_text(json.dumps({"train_file": "data/a.jsonl", "step_weighted_loss": True}))
    # Each reward over their mean, 2; what is context stays untrained.
    assert trajectory_credit(index, "data/a.jsonl", record).weights == pytest.approx([0.5, 1.5, 0.0])
    assert trajectory_credit(index, "elsewhere.jsonl", record).weights == [None, None, None]


def test_the_advantages_are_those_of_the_run_where_there_is_one(tmp_path: Path, make_index: Make):
    record = group(trajectory("a#0", ["x"], False), trajectory("a#1", ["y", "z"], True))
    write(tmp_path / "run/data/g.jsonl", record)
    index = make_index(tmp_path / "run")
    plain = group_credit(index, "data/g.jsonl", record)
    assert (
        plain[0].advantages == pytest.approx([-(2**-0.5)])
        and plain[1].source == "advantages of the rewards in this group"
    )
    trained(tmp_path / "run/grpo", train_file="data/g.jsonl", normalise=False, model="tiny")
    index.catch_up()
    own = group_credit(index, "data/g.jsonl", record)
    assert own[0].advantages == [-0.5] and own[1].advantages == [0.5, 0.5]
    assert own[0].source == "advantages as grpo used them"


def test_groups_that_a_run_played_itself_are_its_own(tmp_path: Path, make_index: Make):
    record = group(trajectory("a#0", ["x"], False), trajectory("a#1", ["y"], True))
    write(tmp_path / "run/grpo/rollouts/00000.jsonl", record)
    (tmp_path / "run/grpo/metrics.jsonl").write_text("")
    (tmp_path / "run/grpo/config.yaml").write_text(json.dumps({"normalise": False, "nonsense": 1}))
    index = make_index(tmp_path / "run")
    assert trained_with(index, "grpo/rollouts/00000.jsonl")[1] == "grpo"


def test_settings_that_cannot_be_read_are_none(tmp_path: Path, make_index: Make):
    for text in ("- a list", "a: [", "\x00", "&a [*a]"):
        (tmp_path / "config.yaml").write_text(text)
        assert stage_settings(make_index(tmp_path), ".") == {}
