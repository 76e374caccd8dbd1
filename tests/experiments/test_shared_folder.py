from dataclasses import replace
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.experiments.run import LOCK
from bough.experiments.sweep_processes import check_shared, problem_here, token_in
from bough.files import locked


def test_a_machine_that_sees_the_files_and_the_lock_has_no_problem(tmp_path: Path):
    with locked(tmp_path / LOCK, wait=False), token_in(tmp_path) as token:
        assert problem_here(token) is None
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_what_is_wrong_with_a_machine_is_said(tmp_path: Path):
    with token_in(tmp_path) as token:
        assert "locks in" in str(problem_here(token))  # this process does not hold it, so it can be taken
        with locked(tmp_path / LOCK, wait=False):
            assert "does not see the files" in str(problem_here(replace(token, text="of another disk")))
            assert "does not see the files" in str(problem_here(replace(token, folder=tmp_path / "elsewhere")))
            assert "has no folder" in str(problem_here(replace(token, working_folder=tmp_path / "none")))
            assert "it has Bough" in str(problem_here(replace(token, version="0.0.1")))


def test_one_node_that_does_not_share_the_folder_is_enough_to_refuse_it(tmp_path: Path):
    check_shared(tmp_path, {"10.0.0.1": None, "10.0.0.2": None})
    with pytest.raises(InputError, match="must be on a disk that all nodes share") as refused:
        check_shared(tmp_path, {"10.0.0.1": None, "10.0.0.2": "it does not see the files"})
    assert refused.value.problems == ["node 10.0.0.2: it does not see the files"]
