from pathlib import Path

import pytest

from bough.config.data import ShowConfig
from bough.errors import InputError
from bough.rundir import RunDir


def test_the_resolved_settings_are_written_and_read_back(tmp_path: Path):
    run = RunDir(tmp_path / "deep" / "run")
    config = ShowConfig(file=Path("a.jsonl"), index=3)
    run.create(config)
    assert ShowConfig.load(run.config) == config


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used as a run folder"):
        RunDir(tmp_path / "file" / "run").create(ShowConfig(file=Path("a")))


def test_clearing_follows_no_link(tmp_path: Path):
    other = tmp_path / "other"
    (other / "step-00000001").mkdir(parents=True)
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.checkpoints.symlink_to(other)
    run.final.mkdir()
    (run.final / "link").symlink_to(other)
    run.metrics.symlink_to(other / "metrics.jsonl")
    run.clear()
    assert list(run.path.iterdir()) == [] and (other / "step-00000001").exists()
