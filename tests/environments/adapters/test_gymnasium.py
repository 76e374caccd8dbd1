import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from bough.environments.base import Environment, EnvironmentFailedError
from bough.environments.registry import find
from bough.errors import InputError
from bough.types import Task
from tests.environments.adapters.playing import collected, played, problems, some_tasks

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")
from bough.environments.adapters.gymnasium import read_action  # noqa: E402

DRY = {"arguments": {"is_slippery": False}}


class Parrot(gymnasium.Env[str, Any]):
    """Say what you hear."""

    observation_space = gymnasium.spaces.Text(20)
    action_space = gymnasium.spaces.Text(20)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word = "polly" if self.np_random.random() < 0.5 else "cracker"
        return self.word, {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "thanks", 0.0, True, False, {"is_success": action == self.word}


class Broken(Parrot):
    """Breaks for one of the words, as an environment with a bug does."""

    action_space = gymnasium.spaces.Discrete(2)
    hangs = False
    released = threading.Event()

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.word == "polly":
            if self.hangs:
                self.released.wait(30)
            raise RuntimeError("out of crackers")
        return super().step(action)


class Hanging(Broken):
    """Does not return for one of the words."""

    hangs = True


class Vague(Parrot):
    """Returns `given` instead of what Gymnasium agrees on."""

    given: Any = None

    def step(self, action: Any) -> Any:
        return self.given


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    for one in (Parrot, Broken, Hanging, Vague):
        gymnasium.register(f"{one.__name__}-v0", one)
    yield
    for one in (Parrot, Broken, Hanging, Vague):
        del gymnasium.registry[f"{one.__name__}-v0"]


def frozen_lake() -> type[Environment]:
    return find("gymnasium:FrozenLake-v1")


def test_the_agent_reads_the_picture_and_names_its_moves():
    task = some_tasks(frozen_lake(), **DRY)[0]
    start, moved, lost = played(frozen_lake(), task, "I think RIGHT is safe.\nSo: right", "somewhere nice")
    assert start.messages[0].role == "system" and "crossing a frozen lake" in start.messages[0].content
    assert start.messages[0].content.endswith("Answer with one of these actions: left, down, right, up.")
    assert start.messages[1].content == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert "S[F]FF" in moved.text and moved.action == "right" and moved.reward == 0.0 and moved.error is None
    assert lost.error == "malformed" and lost.text == "Answer with one of these actions: left, down, right, up."


def test_reaching_the_goal_is_a_success_and_a_hole_is_not():
    task = some_tasks(frozen_lake(), **DRY)[0]
    *_, won = played(frozen_lake(), task, "down", "down", "right", "right", "down", "right")
    assert (won.terminated, won.success, won.reward) == (True, True, 1.0)
    *_, drowned = played(frozen_lake(), task, "right", "down")
    assert (drowned.terminated, drowned.success, drowned.reward) == (True, False, 0.0)


def test_the_contract_is_kept_here_and_in_another_process():
    assert problems(frozen_lake(), some_tasks(frozen_lake()), "gymnasium:FrozenLake-v1") == []


@pytest.mark.parametrize("id", ["Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "CartPole-v1"])
def test_the_contract_is_kept_by_pictures_words_and_numbers(id: str):
    environment_class = find(f"gymnasium:{id}")
    assert problems(environment_class, some_tasks(environment_class, 1)) == []


def test_taxi_is_told_in_words_because_its_picture_has_only_colours():
    start = played(find("gymnasium:Taxi-v4"), Task(id="t", seed=3))[0]
    assert "The taxi is at (0, 2). The passenger is in Red. The destination is Yellow." in start.text
    assert "\x1b" not in start.text


def test_a_return_below_the_threshold_is_no_success():
    """CartPole rewards every step, and ends when the pole falls."""
    seen = played(find("gymnasium:CartPole-v1"), Task(id="t", seed=3), *["push cart to the left"] * 9)
    assert seen[-1].terminated and seen[-1].reward == 1.0 and seen[-1].success is False


def test_text_is_answered_with_text():
    start, heard = played(find("gymnasium:Parrot-v0"), Task(id="t", seed=0), "cracker")
    assert start.messages[1].content in ("polly", "cracker")
    assert heard.terminated and heard.success is (start.messages[1].content == "cracker")
    assert played(find("gymnasium:Parrot-v0"), Task(id="t", seed=0), "far too long a reply to send")[1].error


@pytest.mark.parametrize("name", ["Broken", "Hanging"])
def test_an_environment_that_breaks_or_hangs_loses_only_its_own_episodes(name: str):
    environment_class = find(f"gymnasium:{name}-v0")
    tasks = some_tasks(environment_class, 4)
    Broken.released.clear()
    tally, kept = collected(environment_class, tasks, step_timeout_s=3)
    Broken.released.set()
    words = {task.id: played(environment_class, task)[0].messages[1].content for task in tasks}
    assert {task for task, word in words.items() if word == "cracker"} == set(kept) != set()
    assert tally.faults == {"environment": len(tally.lost)} and len(tally.lost) == 4 - len(kept) > 0
    why = "step raised RuntimeError: out of crackers" if name == "Broken" else "step took longer than 3 s"
    assert all(reason.startswith(why) for reason in tally.lost.values())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("x", 0.0, True, False, {"success": "no"}), "success is 'no'; it must be True or False"),
        (("x", 0.0, True, False, {"is_success": [False]}), r"is_success is \[False\]; it must be True or False"),
        (("x", 1.0, "False", False, {}), "terminated is 'False'; it must be True or False"),
        (("x", 1.0, False, "no", {}), "truncated is 'no'; it must be True or False"),
        (("x", "1", True, False, {}), "the reward is '1'; it must be a number"),
    ],
)
def test_a_word_is_neither_a_success_nor_an_end_nor_a_reward(given: Any, why: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Vague, "given", given)
    with pytest.raises(EnvironmentFailedError, match=why):
        played(find("gymnasium:Vague-v0"), Task(id="t", seed=0), "polly")


@pytest.mark.parametrize("one", [True, 1, 1.0, numpy.bool_(True), numpy.array(True)], ids=repr)
def test_flags_may_be_numbers_and_numpys(one: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Vague, "given", ("x", numpy.float32(0.5), one, False, {"success": one}))
    seen = played(find("gymnasium:Vague-v0"), Task(id="t", seed=0), "polly")[-1]
    assert (seen.success, seen.terminated, seen.reward) == (True, True, 0.5)


def test_a_name_that_does_not_exist_and_spaces_that_no_agent_can_use():
    with pytest.raises(InputError, match=r"no environment 'FrozenLak-v1'; did you mean FrozenLake-v1\?"):
        find("gymnasium:FrozenLak-v1")
    with pytest.raises(InputError, match="an agent can only choose among names or write text"):
        played(find("gymnasium:Pendulum-v1"), Task(id="t", seed=0))
    with pytest.raises(InputError, match="incomplete; write gymnasium:ID"):
        find("gymnasium:")


@pytest.mark.parametrize(
    ("reply", "index"),
    [("left", 0), ("Not left but UP.", 3), ("2", 2), ("lefty", None), ("7", None), ("", None), ("upright", None)],
)
def test_the_last_action_named_counts(reply: str, index: int | None):
    assert read_action(reply, ["left", "down", "right", "up"]) == index
