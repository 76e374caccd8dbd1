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

# A user turn of a functions task ends after 20 replies with calls.
MOST_REPLIES = {"functions": 12, "interpreter": 8}
MEANINGLESS, IMPOSSIBLE, EXPERT = 0.1, 0.1, 0.5
NONSENSE = "Hm."
# With a large exponent or precision they compute for hours, which only a sandbox can stop.
ENDLESS = {"power", "logarithm", "square_root"}


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
    if name == "functions":
        return function_reply(made, rng)
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


def function_reply(made: Any, rng: Random) -> str:
    """Calls of a task's own functions, with the arguments of its gold calls and with others.

    A reply without a call ends the user's turn for good, so it is rare.
    """
    if rng.random() < 0.02:
        return NONSENSE
    conversation = made.conversation
    gold = [call for calls in conversation.gold for call in calls]
    values = [value for call in gold for value in call.arguments.values()] + ["x", 1, True, None]
    if gold and rng.random() < 0.4:
        call = rng.choice(gold)
    else:
        function = rng.choice(sorted(conversation._functions.keys() - ENDLESS))
        names = list(conversation._functions[function]["parameters"]["properties"])
        call = ToolCall(name=function, arguments={name: rng.choice(values) for name in names if rng.random() < 0.8})
    return tool_calls.call_text(call)
