import asyncio

import pytest

from bough.chat import actions
from bough.types import Task
from bough.worlds.household.environment import Household, solved_game
from bough.worlds.household.game import WORDING, Game, Goal, Receptacle, Thing, Wording
from bough.worlds.household.generate import held_out

GOAL = Goal("pick_and_place_simple", "soapbottle", "garbagecan")
ROOM = (
    Receptacle("cabinet 1", "cabinet", 1, openable=True),
    Receptacle("cart 1", "cart", 2),
    Receptacle("garbagecan 1", "garbagecan", 3),
)
THINGS = (Thing("cloth 1", "cloth", "p", 1, (0,)), Thing("soapbottle 2", "soapbottle", "p", 1, (0,)))
OLD = Wording("put {o} in/on {r}", "You put the {o} in/on the {r}.", "")


@pytest.mark.parametrize("thoughts", [False, True])
@pytest.mark.parametrize("wording", [WORDING, OLD])
def test_the_example_is_what_the_game_says_and_wins(wording: Wording, thoughts: bool):
    fits = {"garbagecan": frozenset(["soapbottle"])}
    game = Game("Your task is to: put some soapbottle in garbagecan.", GOAL, 0, ROOM, THINGS, fits, wording=wording)
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
    assert "example" in title and success
    assert "\n".join(line for line in rest.splitlines() if not line.startswith("THOUGHT:")) == "\n".join(said)
    assert shown.count("THOUGHT:") == (len(said) // 2 if thoughts else 0)


def test_its_task_is_not_held_out():
    assert not held_out(GOAL)


def test_it_is_in_the_rules_if_asked_for_in_the_form_that_is_asked_for():
    def rules(**options: bool) -> str:
        task = next(iter(Household.tasks(Household.Options(**options))))
        return asyncio.run(Household(task).start()).messages[0].content

    assert solved_game(WORDING, thoughts=True) in rules(example=True)
    assert solved_game(WORDING, thoughts=False) in rules(example=True, thoughts=False)
    assert rules() + "\n\n" + solved_game(WORDING, thoughts=True) == rules(example=True)
    assert actions.ACTION_PROMPT in rules(thoughts=False) and "THOUGHT" not in rules(thoughts=False, example=True)
