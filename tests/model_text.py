"""Long replies that cost a careless parser minutes each."""

from __future__ import annotations

from collections.abc import Callable

from bough.data.knowlyr import read_text
from bough.environments.mistakes import all_rules, mistakes
from bough.types import Message, Task, Trajectory, Turn
from bough.worlds.household.mistakes import HouseholdRules, Locations
from bough.worlds.interpreter.reasoning import final_answer

SIZE = 125_000
PIECES = [
    "<tool_call>", "</tool_call>", "<tool_call></tool_call>", "<tool_call>{}", '<tool_call>{"name": "a"}</tool_call>\n',
    "<think>", "</think>", "<think></think>", "<answer>", "</answer>", "<answer>1", "```", "``` ", "```\n", "```py\n",
    "```python\n1\n```\n", "`", "` ", "\n", " ", "\t", " \n", "\r", "\r\n", "\v", "\u2028", "a", "a ", "_", "1", "1 ",
    "ACTION:", "ACTION: ", " ACTION", "action\n", "action :", "act:", "*", "**ACTION:**\n", "action: f(1)\n",
    "thought: ", "thought:\n", "Thought:\n", "Action:\n", "Observation:\n", "Step 1:\n", "Step 1:\nThought:",
    "f(1)\n", "f(\n", "f((\n", "f(x)\n", "f", "f(", "(", ")", "[", "{", "}", "'", '"', "\\", "\\\\", "\\{", "\\boxed{",
    "\\boxed{1}", "\\fbox", "\\boxed ", "On the a 1, you see ", "The a 1 is open. In it, you see b 1, ", "put a 1 in ",
    "a 1 ", "0x", "0xffffff ", "9,", "999,", "-", "1/", "your task is to: ", "task is ", ".", ",", "go to a 1\n",
]  # fmt: skip


def texts() -> list[str]:
    """Every piece over and over, alone and inside something that does not end."""
    found = []
    for piece in PIECES:
        body = piece * (SIZE // len(piece))
        found += [body, f"```{body[: SIZE - 10]}<"]
    return found


def read_all(parse: Callable[[str], object]) -> None:
    for text in texts():
        try:
            parse(text)
        except ValueError:  # MalformedError is one
            continue


def tagged(text: str) -> object:
    """The answer in its tags, with this after it."""
    return final_answer(f"<answer>1</answer>{text}")


def steps(text: str) -> object:
    """The steps of a trajectory that is written as one text."""
    return read_text(text, "response")


def look(text: str) -> object:
    """What episodes teach about where things are, where a world says this."""
    return Locations.learn([_episode(text)], 0.05)


def repeat(text: str) -> object:
    """The mistakes of an episode in which this was said and seen."""
    return list(mistakes(_episode(text), all_rules(HouseholdRules(Locations({})))))


def _episode(text: str) -> Trajectory:
    turn = Turn(
        reply=Message(role="assistant", content=text), action=text, observation=[Message(role="user", content=text)]
    )
    return Trajectory(id="a", task=Task(id="a"), start=[Message(role="user", content=text)], turns=[turn, turn])
