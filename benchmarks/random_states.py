"""Random states of an environment: what an agent may have done before an expert takes over.

A reply is one of the possible actions, an action that is well-formed but cannot be carried out,
or a text that means nothing. In half of the states, every second reply on average is the
expert's, because random actions alone hardly ever get beyond the beginning of a task. A reply
that would end the episode is not made: the state before it is the one to start from.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from bough.chat import tool_calls
from bough.environments.base import Environment
from bough.environments.isolated import Isolated
from bough.types import Task, ToolCall

MOST_REPLIES = {"interpreter": 8}
MEANINGLESS, IMPOSSIBLE, EXPERT = 0.1, 0.1, 0.5
NONSENSE = "Hm."


async def random_state(environment_class: type[Environment], task: Task, rng: Random) -> Isolated:
    """The environment after random replies; the caller closes it."""
    mixed, count = rng.random() < 0.5, rng.randrange(MOST_REPLIES.get(environment_class.name, 40))
    environment, replies = Isolated(environment_class, task), list[str]()
    await environment.start()
    for _ in range(count):
        reply = await random_reply(environment, rng, mixed)
        if reply is None:
            break
        replies.append(reply)
        if (await environment.step(reply)).done:
            await environment.close()
            return await _replayed(environment_class, task, replies[:-1])
    return environment


async def _replayed(environment_class: type[Environment], task: Task, replies: list[str]) -> Isolated:
    environment = Isolated(environment_class, task)
    await environment.start()
    for reply in replies:
        assert not (await environment.step(reply)).done, f"{task.id} does not replay"
    return environment


async def random_reply(environment: Isolated, rng: Random, mixed: bool) -> str | None:
    """A reply; None where the environment has no actions to offer."""
    if mixed and rng.random() < EXPERT and (advice := await environment.expert()) is not None:
        return advice
    made: Any = environment._made
    name = type(made).name
    if name == "interpreter":
        return rng.choice(CODE)
    if rng.random() < MEANINGLESS:
        return NONSENSE
    if rng.random() < IMPOSSIBLE:
        return await environment.say(IMPOSSIBLE_ACTIONS[name](rng))
    choices = sorted(await environment.choices())
    if name == "web" and rng.random() < 0.3:
        return await environment.say(other_web_action(made, rng))
    return await environment.say(rng.choice(choices)) if choices else None


CODE = [
    NONSENSE, "<tool_call>{", *(
        tool_calls.call_text(ToolCall(name="code_interpreter", arguments={"code": code}))
        for code in ("1/0", "print(7)", "x = 1", "import math\nprint(math.pi)", "print(", "print('a' * 3)")
    ),
]  # fmt: skip
IMPOSSIBLE_ACTIONS: dict[str, Callable[[Random], str]] = {
    "household": lambda rng: rng.choice(["take spoon 9 from drawer 99", "open floor 1", "fly", "go to roof 1"]),
    "web": lambda rng: rng.choice(["click('99')", "fill('99', 'x')", "select_option('1', 'nothing')", "jump()"]),
}


def other_web_action(made: Any, rng: Random) -> str:
    """An action that `choices` does not list."""
    numbers = [line.number for line in made.view.lines if line.number] or [1]
    one, other = rng.choice(numbers), rng.choice(numbers)
    key = rng.choice(["Enter", "Tab", "ArrowDown", "ArrowUp", "Escape", "Backspace", "a"])
    x, y = rng.randrange(160), rng.randrange(50, 210)
    return rng.choice(
        [
            f"press('{key}')", f"type('{rng.choice(made.view.goal.split())}')".replace('"', ""), f"hover('{one}')",
            f"scroll('{rng.choice(['up', 'down'])}')", f"drag('{one}', '{other}')", f"mouse_click({x}, {y})", "wait()",
        ]
    )  # fmt: skip
