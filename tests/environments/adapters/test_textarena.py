import random
from importlib.util import find_spec

import pytest

from bough.environments.base import Environment
from bough.environments.registry import find
from bough.errors import InputError
from bough.types import Task
from tests.environments.adapters.playing import ScriptedAgent, collected, played, problems, some_tasks
from tests.later import Later

if find_spec("textarena") is None:
    pytest.skip("textarena is not installed", allow_module_level=True)
adapter = Later("bough.environments.adapters.textarena")


def guessing() -> type[Environment]:
    return find("textarena:GuessTheNumber-v0")


def tic_tac_toe() -> type[Environment]:
    return find("textarena:TicTacToe-v0")


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


@pytest.mark.parametrize("game", ["GuessTheNumber-v0", "TicTacToe-v0", "2048-v0-ultra-easy"])
def test_the_contract_is_kept(game: str):
    environment_class = find(f"textarena:{game}")
    assert problems(environment_class, some_tasks(environment_class)) == []


def test_games_leave_the_random_module_alone():
    random.seed(3)
    before = random.getstate()
    collected(guessing(), some_tasks(guessing(), 2), ScriptedAgent("[3]", "[4]"), max_turns=2)
    assert random.getstate() == before


def test_the_agent_plays_both_sides_in_turns():
    tasks = some_tasks(tic_tac_toe(), 4)
    assert [task.data["player"] for task in tasks] == [0, 1, 0, 1]
    first, second = (played(tic_tac_toe(), task)[0].text for task in tasks[:2])
    assert "You are Player 0" in first and "[Player 1]" not in first
    assert "You are Player 1" in second and "[Player 0] [" in second, "the opponent has moved"
    chosen = tic_tac_toe().Options(player=1)
    assert next(iter(tic_tac_toe().tasks(chosen))).data["player"] == 1


def test_random_opponents_and_agents_make_legal_moves_only():
    tally, kept = collected(tic_tac_toe(), some_tasks(tic_tac_toe(), 6), max_turns=9)
    assert len(kept) == 6 and tally.stops == {"done": 6} and not tally.errors
    assert {trajectory.rewards["outcome"] for trajectory in kept.values()} <= {-1.0, 0.0, 1.0}
    assert all(trajectory.success == (trajectory.rewards["outcome"] == 1) for trajectory in kept.values())


def test_legal_moves_are_what_the_game_accepts_with_any_numbers():
    game, _ = adapter.make_game("TicTacToe-v0")
    game.reset(num_players=2, seed=0)
    game.step("[4]")
    found = adapter.legal_moves(game, "For example, '[4]' or [north]", random.Random(0), most=100)
    assert sorted(found) == [f"[{cell}]" for cell in (0, 1, 2, 3, 5, 6, 7, 8)]


@pytest.mark.parametrize(
    ("game", "problem"),
    [
        ("TicTacTo-v0", "no game 'TicTacTo-v0'; did you mean TicTacToe-v0?"),
        ("SecretMafia-v0", "cannot be played by one or two players: AssertionError: Player count must be between"),
    ],
)
def test_what_cannot_be_played_is_said(game: str, problem: str):
    with pytest.raises(InputError) as error:
        find(f"textarena:{game}")
    assert problem in str(error.value)
