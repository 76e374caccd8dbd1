import asyncio
import copy
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bough.chat.tool_calls import ACTION_PROMPT
from bough.environments.base import Observation, digest
from bough.environments.check import check
from bough.errors import InputError
from bough.types import Task
from bough.worlds.household.environment import Household, solved_game
from bough.worlds.household.game import KINDS, WORDING, Game, Goal, Receptacle, Thing, Wording
from bough.worlds.household.generate import held_out
from tests.worlds.household.flat import flat, played
from tests.worlds.household.problem import CONTENT

TAKE = ("go to countertop 1", "take apple 1 from countertop 1", "go to shelf 1")
WIN = (*TAKE, "move apple 1 to shelf 1")


def play(*replies: str, **data: Any) -> list[Observation]:
    """The start and the answers to replies; what is no reply yet is said as an action."""
    return raw(*(reply if ":" in reply else f"ACTION: {reply}" for reply in replies), **data)


def raw(*replies: str, **data: Any) -> list[Observation]:
    """The start and the answers to replies as they are."""

    async def episode() -> list[Observation]:
        world = Household(Task(id="flat", data={"game": flat().to_data(), **data}))
        return [await world.start(), *[await world.step(reply) for reply in replies]]

    return asyncio.run(episode())


def test_an_episode_starts_with_the_rules_then_the_room_and_the_task():
    (start,) = play()
    rules, room = start.messages
    assert rules.role == "system" and "take (object) from (receptacle)" in rules.content and "ACTION:" in rules.content
    assert room.content.startswith("You are in the middle of a room.")
    assert room.content.endswith("Your task is to: put some apple on shelf.")
    assert room.hint is None and start.progress == 0


def test_a_command_is_answered_with_the_games_text_or_counted_as_invalid():
    start, answer = play("THOUGHT: The mug is of no use.\nACTION: go to shelf 1")
    assert answer.text == "You arrive at shelf 1. On the shelf 1, you see a mug 1."
    assert answer.info == {"command": "go to shelf 1", "feedback": answer.text, "won": False}
    assert start.info["intro"].startswith("-= Welcome to TextWorld, ALFRED! =-")
    assert (answer.action, answer.error, answer.done, answer.reward) == ("go to shelf 1", None, False, None)
    answer = play("go to the moon")[1]
    assert (answer.text, answer.error, answer.done) == ("Nothing happens.", "invalid_action", False)
    assert answer.action == "go to the moon"
    answer = play("hello: world")[1]
    assert answer.error == "malformed" and answer.text.startswith("I found no action in that.") and not answer.done
    assert answer.info["feedback"] == "Nothing happens." and answer.info["command"] == ""


@pytest.mark.parametrize("claim", ["task succeeded", "Task succeeded."])
def test_to_claim_success_too_early_ends_the_episode_as_premature(claim: str):
    last = play(*TAKE, claim)[-1]
    assert (last.terminated, last.success, last.stop, last.reward) == (True, False, "premature_success", 0.0)
    assert last.info["feedback"] == "Nothing happens." and last.action == claim


def test_the_first_end_counts_though_the_game_can_be_played_on():
    *before, won, last = play(*WIN, "task succeeded")
    assert not any(answer.done for answer in before) and won.progress == 1.0
    for end in (won, last):
        assert (end.terminated, end.success, end.stop, end.reward) == (True, True, None, 1.0)
    late = play("task succeeded", *WIN)[-1]
    assert (late.terminated, late.success, late.stop, late.info["won"]) == (True, False, "premature_success", True)
    lost, claimed = play(*WIN, "take apple 1 from shelf 1", "task succeeded")[-2:]
    assert (claimed.terminated, claimed.success, claimed.stop, claimed.info["won"]) == (True, True, None, False)
    assert (lost.terminated, lost.success, lost.info["won"]) == (True, True, False)
    assert lost.info["feedback"] == "You pick up the apple 1 from the shelf 1."


def test_who_must_claim_ends_the_episode_by_a_true_claim_only():
    *before, won, claimed = play(*WIN, "task succeeded", claim=True)
    assert not any(answer.done for answer in (*before, won)) and won.progress == 1
    assert (claimed.terminated, claimed.success, claimed.stop, claimed.reward) == (True, True, None, 1.0)
    early = play(*TAKE, "task succeeded", claim=True)[-1]
    assert (early.terminated, early.success, early.stop) == (True, False, "premature_success")
    undone = play(*WIN, "take apple 1 from shelf 1", "task succeeded", claim=True)[-1]
    assert (undone.success, undone.stop) == (False, "premature_success")


def test_who_must_claim_is_told_so_and_shown_how_by_the_expert():
    asked, free = (play(claim=claim)[0].messages[0].content for claim in (True, False))
    assert "task succeeded" in asked and "ends by itself" not in asked
    assert "task succeeded" not in free and "ends by itself" in free

    async def episode() -> tuple[list[str], Observation]:
        (task,) = islice(Household.tasks(Household.Options(claim=True), split="train", seed=0), 1)
        world, said = Household(task), []
        answer = await world.start()
        while (reply := await world.expert()) is not None:
            assert reply.splitlines()[-1].removeprefix("ACTION: ") in world.choices()
            answer = await world.step(reply)
            said.append(reply)
        return said, answer

    said, answer = asyncio.run(episode())
    assert said[-1].endswith("ACTION: task succeeded") and answer.success


def test_admissible_commands_are_shown_as_a_hint_until_the_end():
    observations = play(*WIN, admissible=True)
    for number, observation in enumerate(observations[:-1]):
        possible = played(flat(), *WIN[:number]).admissible
        assert observation.messages[-1].hint == "\nAVAILABLE ACTIONS: " + ", ".join(possible)
        assert "AVAILABLE" not in observation.messages[-1].content
    assert observations[-1].messages[-1].hint is None


def test_the_expert_wins():
    async def episode(task: Task) -> tuple[int, Observation]:
        world, turns = Household(task), 0
        observation = await world.start()
        while not observation.done:
            reply = await world.expert()
            assert reply is not None and reply.startswith("THOUGHT: ")
            refused = observation.error is not None
            observation, turns = await world.step(reply), turns + 1
            # It may try the way to something that is at hand already, but then knows it.
            assert observation.error is None or ("ACTION: go to " in reply and not refused)
        return turns, observation

    for task in islice(Household.tasks(Household.Options()), 12):
        turns, last = asyncio.run(episode(task))
        assert last.success and last.progress == 1 and turns <= 50, task.id


def test_without_thoughts_neither_the_rules_nor_errors_nor_the_expert_have_any():
    options = Household.Options(thoughts=False)
    task = next(iter(Household.tasks(options)))
    assert "thoughts" not in next(iter(Household.tasks(Household.Options()))).data, "recorded tasks stay equal"

    async def texts() -> list[str]:
        world = Household(task)
        start, malformed = await world.start(), await world.step("hello")
        return [start.messages[0].content, malformed.text, await world.expert() or ""]

    rules, error, reply = asyncio.run(texts())
    assert "THOUGHT" not in rules + error + reply
    assert error == f"I found no action in that. {ACTION_PROMPT}" and rules.endswith(ACTION_PROMPT)
    assert reply.startswith("ACTION: ")


def test_without_thoughts_a_possible_command_needs_no_tag_and_nothing_else_is_one():
    _, *answers = raw("go to shelf 1", " GO TO countertop 1\n", "ACTION: go to the moon", thoughts=False)
    assert [(answer.action, answer.error) for answer in answers] == [
        ("go to shelf 1", None), ("go to countertop 1", None), ("go to the moon", "invalid_action"),
    ]  # fmt: skip
    assert [answer.error for answer in raw("go to the moon", thoughts=False)[1:]] == ["malformed"]
    assert [answer.error for answer in raw("go to shelf 1")[1:]] == ["malformed"], "with thoughts it needs one"


def test_tasks_carry_the_game_and_the_options():
    options = Household.Options(types=["pick_two_obj_and_place"], admissible=True)
    first, again = (list(islice(Household.tasks(options, split="seen", seed=3), 4)) for _ in range(2))
    assert first == again and len({task.id for task in first}) == 4
    for task in first:
        assert (task.environment, task.seed, task.data["admissible"]) == ("household", 3, True)
        assert task.data["type"] == task.data["game"]["goal"][0] == "pick_two_obj_and_place"
        assert len(task.model_dump_json()) < 10_000
    assert first != list(islice(Household.tasks(options, split="seen", seed=4), 4))
    kinds = [task.data["game"]["goal"][0] for task in islice(Household.tasks(Household.Options()), 6)]
    assert sorted(kinds) == sorted(KINDS), "by default all six"


def test_official_games_are_played_from_their_files_and_are_the_same_tasks_with_every_seed(tmp_path: Path):
    """Otherwise an evaluation with three seeds would seem to have three times the tasks."""
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(CONTENT))
    found = [task for seed in (0, 1) for task in Household.tasks(Household.Options(games=path), seed=seed)]
    path.unlink()  # the task says everything
    start = asyncio.run(Household(found[0]).start())
    assert start.messages[1].content.endswith("Your task is to: put a cup in shelf.")
    assert digest(found[0]) == digest(found[1])
    generated = [next(iter(Household.tasks(Household.Options(), seed=seed))) for seed in (0, 1)]
    assert digest(generated[0]) != digest(generated[1])


def test_the_rules_name_the_verb_of_the_edition():
    def rules(**changes: Any) -> str:
        world = Household(Task(id="flat", data={"game": flat(**changes).to_data()}))
        return asyncio.run(world.start()).messages[0].content

    assert "\nmove (object) to (receptacle)\n" in rules()
    assert "\nput (object) in/on (receptacle)\n" in rules(wording=Wording(put_command="put {o} in/on {r}"))


def test_what_cannot_be_played_is_refused():
    with pytest.raises(InputError, match=r'task mine: its data has no "game"'):
        Household(Task(id="mine"))
    with pytest.raises(InputError, match="choose one of"):
        Household.Options(types=["pick_and_throw"])


def test_the_contract_holds():
    tasks = list(islice(Household.tasks(Household.Options(admissible=True)), 3))
    assert asyncio.run(check(Household, "household", tasks)).problems == []


def test_the_state_is_that_of_the_game_however_it_was_reached():
    moved = play("go to countertop 1", "look", "go to fridge 1", "ACTION: nonsense", "go to countertop 1")
    states = [answer.state for answer in moved]
    assert states[1] == states[2] == states[5] and states[3] == states[4]
    assert len({states[0], states[1], states[3]}) == 3


def test_a_game_is_read_once_for_all_attempts_and_again_when_a_task_of_the_same_name_has_another():
    (task,) = islice(Household.tasks(Household.Options()), 1)
    first, again = Household(task), Household(task.model_copy(update={"data": copy.deepcopy(task.data)}))
    assert first.engine.world.game is again.engine.world.game
    assert first.engine.world is not again.engine.world
    other = copy.deepcopy(task.data)
    other["game"]["task"] = "Your task is to: do nothing."
    assert Household(task.model_copy(update={"data": other})).engine.world.game.task == "Your task is to: do nothing."


GOAL = Goal("pick_and_place_simple", "soapbottle", "garbagecan")
ROOM = (
    Receptacle("cabinet 1", "cabinet", 1, openable=True),
    Receptacle("cart 1", "cart", 2),
    Receptacle("garbagecan 1", "garbagecan", 3),
)
BOTTLE = (Thing("cloth 1", "cloth", "p", 1, (0,)), Thing("soapbottle 2", "soapbottle", "p", 1, (0,)))
OLD = Wording("put {o} in/on {r}", "You put the {o} in/on the {r}.", "")


@pytest.mark.parametrize("thoughts", [False, True])
@pytest.mark.parametrize("wording", [WORDING, OLD])
def test_the_example_is_what_the_game_says_and_wins(wording: Wording, thoughts: bool):
    fits = {"garbagecan": frozenset(["soapbottle"])}
    game = Game("Your task is to: put some soapbottle in garbagecan.", GOAL, 0, ROOM, BOTTLE, fits, wording=wording)
    shown = solved_game(wording, thoughts=thoughts)

    async def played() -> tuple[list[str], bool | None]:
        world = Household(Task(id="example", data={"game": game.to_data()}))
        said, answer = [], await world.start()
        for line in shown.splitlines():
            if line.startswith("ACTION:"):
                said += [answer.messages[-1].content, line]
                answer = await world.step(line)
        return [*said, answer.text], answer.success

    said, success = asyncio.run(played())
    title, _, rest = shown.partition("\n")
    assert "example" in title and success and not held_out(GOAL)
    assert "\n".join(line for line in rest.splitlines() if not line.startswith("THOUGHT:")) == "\n".join(said)
    assert shown.count("THOUGHT:") == (len(said) // 2 if thoughts else 0)


def test_it_is_in_the_rules_if_asked_for_in_the_form_that_is_asked_for():
    def rules(**options: bool) -> str:
        task = next(iter(Household.tasks(Household.Options(**options))))
        return asyncio.run(Household(task).start()).messages[0].content

    assert solved_game(WORDING, thoughts=True) in rules(example=True)
    assert solved_game(WORDING, thoughts=False) in rules(example=True, thoughts=False)
    assert rules() + "\n\n" + solved_game(WORDING, thoughts=True) == rules(example=True)
    assert ACTION_PROMPT in rules(thoughts=False) and "THOUGHT" not in rules(thoughts=False, example=True)
