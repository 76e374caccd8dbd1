import random
from importlib.util import find_spec

import pytest

from bough.environments.base import Environment
from bough.environments.registry import find
from bough.errors import InputError
from bough.types import Task
from tests.environments.adapters.playing import ScriptedAgent, collected, played, problems, some_tasks

if find_spec("textarena") is None:
    pytest.skip("textarena is not installed", allow_module_level=True)


def guessing() -> type[Environment]:
    return find("textarena:GuessTheNumber-v0")


def test_a_game_for_one_is_won_by_searching():
    task = Task(id="t", seed=5)
    replies, low, high = [], 1, 20
    while not (seen := played(guessing(), task, *replies))[-1].done:
        if replies:
            low, high = (low, int(replies[-1]) - 1) if "lower" in seen[-1].text else (int(replies[-1]) + 1, high)
        replies.append(str((low + high) // 2))
    assert "guess the number between 1 and 20" in seen[0].text
    assert seen[-1].success and seen[-1].reward == 1.0 and "guessed the correct number" in seen[-1].text
    assert seen[1].action == replies[0] and seen[1].reward is None


def test_a_lost_game_keeps_its_partial_reward():
    *_, last = played(guessing(), Task(id="t", seed=5), "[1]", "nonsense", "nonsense")
    assert last.terminated and last.success is False and last.reward is not None and 0 <= last.reward < 1


def test_a_refused_move_is_an_invalid_action_and_says_why():
    seen = played(guessing(), Task(id="t", seed=5), "I have no idea", "[1]", "x" * 100_000)
    assert [one.error for one in seen] == [None, "invalid_action", None, "malformed"]
    assert "invalid move" in seen[1].text and "at most 10,000 are read" in seen[3].text


@pytest.mark.parametrize("game", ["GuessTheNumber-v0", "2048-v0-ultra-easy"])
def test_the_contract_is_kept(game: str):
    environment_class = find(f"textarena:{game}")
    assert problems(environment_class, some_tasks(environment_class)) == []


def test_games_leave_the_random_module_alone():
    random.seed(3)
    before = random.getstate()
    collected(guessing(), some_tasks(guessing(), 2), ScriptedAgent("[3]", "[4]"), max_turns=2)
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("game", "problem"),
    [
        ("TicTacTo-v0", "no game 'TicTacTo-v0'; did you mean TicTacToe-v0?"),
        ("TicTacToe-v0", "cannot be played by one player: "),
    ],
)
def test_what_cannot_be_played_is_said(game: str, problem: str):
    with pytest.raises(InputError) as error:
        find(f"textarena:{game}")
    assert problem in str(error.value)
