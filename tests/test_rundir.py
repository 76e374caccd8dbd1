import os
import subprocess
import sys
from pathlib import Path

import pytest

from bough.commands.data import ShowConfig
from bough.config.run_folder import RunDir
from bough.errors import InputError


def test_the_resolved_settings_are_written_and_read_back(tmp_path: Path):
    run = RunDir(tmp_path / "deep" / "run")
    config = ShowConfig(file=Path("a.jsonl"), index=3)
    run.create(config)
    assert ShowConfig.load(run.config) == config


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used as a run folder"):
        RunDir(tmp_path / "file" / "run").create(ShowConfig(file=Path("a")))


HOLD = """
import sys
from bough.config.run_folder import RunDir
with RunDir(sys.argv[1]).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_locked_against_other_processes_until_the_holder_ends_however_it_ends(tmp_path: Path):
    run = RunDir(tmp_path / "deep" / "run")
    for kill in (False, True):
        command, pipe = [sys.executable, "-c", HOLD, str(run.path)], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ, text=True) as holder:
            assert holder.stdout and holder.stdout.readline() == "locked\n"
            with pytest.raises(InputError, match="is in use: another process is training there"), run.locked():
                pass
            if kill:
                holder.kill()  # SIGKILL: nothing is cleaned up
            else:
                holder.communicate()
            holder.wait()
        with run.locked():
            pass


KILLED = """
import os, sys
from pathlib import Path
from bough.files import replacing
with replacing(Path(sys.argv[1])) as draft:
    draft.write_text("half")
    os.kill(os.getpid(), 9)
"""


def test_drafts_that_killed_processes_have_left_are_removed(tmp_path: Path):
    run, own = RunDir(tmp_path), tmp_path / ".notes.2.txt"
    own.write_text("the user's")
    for file in (run.metrics, tmp_path / "evaluation" / "results.json"):
        subprocess.run([sys.executable, "-c", KILLED, str(file)], env=os.environ, check=False)
    assert len(list(tmp_path.rglob(".*.json*"))) == 2
    with run.locked():
        assert {path.name for path in tmp_path.rglob("*")} == {".lock", own.name, "evaluation"}


def test_clearing_leaves_what_is_not_the_runs_and_the_lock(tmp_path: Path):
    run = RunDir(tmp_path)
    with run.locked():
        for file in (run.config, run.origin, run.ledger, run.report, run.metrics, run.bad_batch(3), tmp_path / "notes"):
            file.write_text("")
        for folder in (run.checkpoints, run.final):
            folder.mkdir()
        run.clear()
        with pytest.raises(InputError, match="is in use"), RunDir(tmp_path).locked():
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "notes"]


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


def test_a_start_that_failed_before_its_first_step_blocks_nothing(tmp_path: Path):
    run = RunDir(tmp_path)
    run.metrics.write_text("")
    run.checkpoints.mkdir()
    assert not run.used
    run.metrics.write_text('{"step": 1}\n')
    assert run.used
    run.metrics.unlink()
    (run.checkpoints / "step-1").mkdir()
    assert run.used


@pytest.mark.parametrize("name", ["checkpoints", "rollouts", "episodes", "cache"])
def test_a_linked_folder_inside_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    run = RunDir(tmp_path / "run")
    (tmp_path / "other" / "step-00000001").mkdir(parents=True)
    run.path.mkdir()
    (run.path / name).symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match=rf"{name} is a symbolic link.*--follow-links"):
        run.make_room(resume=True, overwrite=False)
    monkeypatch.setenv("BOUGH_FOLLOW_LINKS", "1")
    run.make_room(resume=True, overwrite=False)
    assert (tmp_path / "other" / "step-00000001").is_dir()


def test_a_linked_checkpoint_is_refused_before_the_run_begins(tmp_path: Path):
    run = RunDir(tmp_path / "run")
    (tmp_path / "other").mkdir()
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / "step-00000001").symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match="step-00000001 is a symbolic link"):
        run.make_room(resume=True, overwrite=False)


def test_the_run_folder_itself_may_be_a_link(tmp_path: Path):
    (tmp_path / "there").mkdir()
    (tmp_path / "latest").symlink_to("there")
    run = RunDir(tmp_path / "latest")
    with run.locked():
        run.make_room(resume=False, overwrite=False)
        run.create(ShowConfig(file=Path("a.jsonl")))
    assert (tmp_path / "there" / "config.yaml").is_file()
