"""What an author's code raises is shown with the author's file and line, in every command."""

import re
from pathlib import Path
from typing import Any

import pytest

from bough.cli import main
from bough.errors import describe_failure, short_repr
from bough.types import Task
from tests.environments import raising

FILE = Path(raising.__file__)
LINE = next(number for number, text in enumerate(FILE.read_text().splitlines(), 1) if "# the mistake" in text)
FRAME = f'raising.py:{LINE} in look_up: return PRICES["tea"]'
PLACES = ["InInit", "InStart", "InStep", "InTasks", "InClose", "InExpert"]


def said(command: list[str], capsys: Any, caplog: Any) -> tuple[int, str]:
    code = main(command)
    shown = capsys.readouterr()
    return code, re.sub(r"\s*\n\s*", " ", shown.out + shown.err + caplog.text)


def check_shown(text: str) -> None:
    assert f"raised KeyError: 'tea' (tests/environments/raising.py:{LINE})" in text
    assert FRAME in text and "defect" not in text and str(FILE.parents[2]) not in text


@pytest.mark.parametrize("place", PLACES)
def test_env_check(place: str, capsys: Any, caplog: Any):
    code, text = said(["env", "check", f"{FILE}:{place}", "--tasks", "2"], capsys, caplog)
    assert code in (1, 2)
    check_shown(text)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "InExpert"])
def test_play(place: str, tmp_path: Path, capsys: Any, caplog: Any):
    (tmp_path / "actions.txt").write_text("1\n")
    words = [f"{FILE}:{place}", "--actions", str(tmp_path / "actions.txt")]
    code, text = said(["play", *words], capsys, caplog)
    assert code == (0 if place == "InClose" else 1)
    check_shown(text)


@pytest.mark.parametrize(
    ("command", "place"), [*(("collect", place) for place in PLACES), ("eval", "InStep"), ("eval", "InTasks")]
)
def test_episodes(command: str, place: str, tmp_path: Path, capsys: Any, caplog: Any):
    words = ["--environment", f"{FILE}:{place}", "--model", "expert", "--tasks", "2", "--retries", "0"]
    code, text = said([command, *words, "-o", str(tmp_path / "out")], capsys, caplog)
    assert code == (0 if place == "InClose" else 1), text
    check_shown(text)
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert str(FILE.parent) not in file.read_text(), file


def test_frames_of_installed_packages_are_left_out_unless_there_are_no_others():
    import yaml

    def read() -> None:
        yaml.safe_load("a: [")

    with pytest.raises(yaml.YAMLError) as caught:
        read()
    assert describe_failure("step", caught.value).splitlines()[-1].startswith("  tests/environments/test_raising.py:")
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load("a: [")
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # type: ignore[union-attr]
    assert " in " in describe_failure("step", caught.value) and "yaml/" in describe_failure("step", caught.value)


class LeavingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


def test_what_cannot_be_shown_is_still_described():
    text = describe_failure("step", LeavingError())
    assert text == "step raised LeavingError: its message cannot be shown: __str__ raised SystemExit"
    assert short_repr(LeavingError) == "<class 'tests.environments.test_raising.LeavingError'>"
    assert short_repr(10**5000) == "an object of type int"


def test_a_long_message_is_cut_with_its_length():
    text = describe_failure("step", ValueError("x" * 10_000_000))
    assert len(text) < 3000 and text.endswith(" … (10,000,000 characters)")


def test_a_reward(caplog: Any):
    from bough.environments.rubric import Rubric
    from bough.types import Message, Trajectory

    rubric = Rubric({"tests.environments.raising:reward": 1.0, "progress": 1.0})
    record = Trajectory(id="t#0", task=Task(id="t"), start=[Message(role="user", content="Go.")], turns=[])
    for _ in range(2):
        assert rubric.score(record).rewards["total"] is None
    assert f"raising.py:{LINE}" in rubric.why["reward"]
    assert caplog.text.count("the reward reward raised KeyError") == 1 and FRAME in caplog.text
    assert "progress" in rubric.failed and "progress" not in caplog.text, "a reward without a value is no mistake"


def test_setup(capsys: Any, caplog: Any):
    code, text = said(["env", "setup", f"{FILE}:InSetup"], capsys, caplog)
    assert code == 1
    check_shown(text)
