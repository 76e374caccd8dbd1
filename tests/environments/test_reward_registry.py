from pathlib import Path

import pytest

from bough.environments.rubric import REWARDS, find, parameters
from bough.errors import InputError
from tests.environments.records import trajectory


def always(trajectory: object) -> float:
    return 0.25


NUMBER = 3


def test_ours_go_by_their_names():
    ours = {"outcome", "progress", "steps", "format", "mistakes", "tool_call", "overlong"}
    assert set(REWARDS) == ours | {"judge", "judge_ranking"}
    assert all(find(name) is reward for name, reward in REWARDS.items())
    assert all(REWARDS[name].__name__ == name for name in ours)


def test_a_function_of_a_module_or_of_a_file(tmp_path: Path):
    assert find(f"{__name__}:always") is always
    (tmp_path / "mine.py").write_text("def brevity(t, *, base=2):\n    return 1 / base ** len(t.turns)\n")
    brevity = find(f"{tmp_path / 'mine.py'}:brevity")
    assert brevity(trajectory()) == 1.0 and parameters(brevity) == ["base"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("outcom", "there is no reward 'outcom'; did you mean outcome? (your own: module:function"),
        ("nowhere.at_all:f", "cannot be loaded: nowhere.at_all raised ModuleNotFoundError"),
        ("missing.py:f", "missing.py: there is no such file"),
        (f"{__name__}:alwys", "has no 'alwys'; did you mean always?"),
        (f"{__name__}:NUMBER", "is of type int; it must be a function"),
    ],
)
def test_what_is_not_there_is_named(name: str, said: str):
    with pytest.raises(InputError) as error:
        find(name)
    assert said in str(error.value)
