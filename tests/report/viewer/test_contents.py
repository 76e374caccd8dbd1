import os
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.report.viewer.contents import Root
from tests.report.viewer.samples import trajectory, write


def test_a_folder_is_sorted_into_what_it_holds(folder: Path):
    found = Root(folder).contents()
    assert found.training == ["05-dpo"]
    assert found.evaluations == ["06-eval"]
    assert "02-rollouts/trajectories.jsonl" in found.data and "06-eval/models/random/trajectories.jsonl" in found.data
    assert not any("metrics" in name or name.endswith(".json") for name in found.data)
    assert [name[:2] for name in found.stages] == ["01", "02", "03", "04", "05", "06"]


def test_checkpoints_images_and_hidden_files_are_left_alone(tmp_path: Path):
    for name in ("checkpoints/a.jsonl", "images/a.jsonl", ".hidden/a.jsonl", ".a.jsonl", "kept/a.jsonl"):
        write(tmp_path / name, trajectory("a#0", ["look"]))
    assert Root(tmp_path).contents().data == ["kept/a.jsonl"]


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path):
    outside = write(tmp_path / "outside/a.jsonl", trajectory("a#0", ["look"]))
    inside = tmp_path / "inside"
    write(inside / "b.jsonl", trajectory("b#0", ["look"]))
    (inside / "out.jsonl").symlink_to(outside)
    (inside / "own.jsonl").symlink_to(inside / "b.jsonl")
    (inside / "folder").symlink_to(outside.parent)
    assert Root(inside).contents().data == ["b.jsonl", "own.jsonl"]


def test_only_plain_files_inside_are_inside(tmp_path: Path):
    write(tmp_path / "in/a.jsonl", trajectory("a#0", ["look"]))
    (tmp_path / "secret.png").write_text("x")
    os.mkfifo(tmp_path / "in/pipe")
    root = Root(tmp_path / "in")
    assert root.inside(root.path / "a.jsonl") is not None
    for name in ("../secret.png", "pipe", ".", "missing", "a\0b", "x" * 5000):
        assert root.inside(root.path / name) is None


def test_one_file_is_shown_without_its_neighbours(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", trajectory("a#0", ["look"]))
    write(tmp_path / "b.jsonl", trajectory("b#0", ["look"]))
    assert Root(file).contents().data == ["a.jsonl"]


def test_what_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(InputError, match=r"^[^:]*: there is no such file or folder"):
        Root(tmp_path / "missing")
