"""Environments that misbehave in the episodes of tasks named "bad…", each in its own way, and in no others."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from bough.environments.base import Environment, Observation
from bough.types import Message, Task
from tests.environments.worlds import Counting

# Longer than any time-out of a test; a thread that is left behind ends some time after it.
LONG_S = 20.0
UNENDING = threading.Event()


def misbehaving(**methods: Callable[..., Any]) -> type[Environment]:
    """A counting world whose `methods` are replaced in the episodes of bad tasks."""

    def choose(name: str) -> Callable[..., Any]:
        good, bad = getattr(Counting, name), methods[name]
        return lambda self, *given: (bad if self.task.id.startswith("bad") else good)(self, *given)

    return type(
        "Misbehaving", (Counting,), {name: choose(name) for name in methods if name != "shutdown"} | shared(methods)
    )


def shared(methods: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    return {"shutdown": classmethod(methods["shutdown"])} if "shutdown" in methods else {}


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    async def method(self: Any, *given: Any) -> Any:
        raise error

    return method


def answering(**values: Any) -> Callable[..., Any]:
    async def method(self: Any, *given: Any) -> Observation:
        return Observation(**{"messages": (Message(role="user", content="Well?"),), "terminated": True, **values})

    return method


def saying(text: str) -> Callable[..., Any]:
    return answering(messages=(Message(role="user", content=text),))


def returning(value: Any) -> Callable[..., Any]:
    async def method(self: Any, *given: Any) -> Any:
        return value() if callable(value) else value

    return method


async def hang(self: Any, *given: Any) -> Any:
    await asyncio.sleep(LONG_S)


async def block(self: Any, *given: Any) -> Any:
    UNENDING.wait(LONG_S)


async def spin(self: Any, *given: Any) -> Any:
    begun = time.monotonic()
    while time.monotonic() - begun < LONG_S:
        pass


async def refuse_to_end(self: Any, *given: Any) -> Any:
    begun = time.monotonic()
    while time.monotonic() - begun < LONG_S:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


async def wait_in_a_thread(self: Any, *given: Any) -> Any:
    await asyncio.to_thread(UNENDING.wait, LONG_S)


async def recurse(self: Any, *given: Any) -> Any:
    return await recurse(self, *given)


async def cancel_itself(self: Any, *given: Any) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(LONG_S)


async def cancel_everything(self: Any, *given: Any) -> Any:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(LONG_S)


async def stop_the_loop(self: Any, *given: Any) -> Any:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(LONG_S)


async def close_the_loop(self: Any, *given: Any) -> Any:
    asyncio.get_running_loop().close()


async def exit_in_a_task(self: Any, *given: Any) -> Any:
    async def leave() -> None:
        raise SystemExit(3)

    self.leaving = asyncio.create_task(leave())
    await asyncio.sleep(LONG_S)


async def start_tasks_without_end(self: Any) -> Observation:
    async def more() -> None:
        while True:
            await asyncio.sleep(0.001)

    self.tasks = [asyncio.create_task(more()) for _ in range(100)]
    return await Counting.start(self)


async def start_a_task_that_blocks(self: Any) -> Observation:
    self.blocking = asyncio.create_task(block(self))
    return await Counting.start(self)


async def change_the_task(self: Any) -> Observation:
    self.task.data["goal"] = object()
    return await Counting.start(self)


async def change_the_folder(self: Any) -> Observation:
    os.chdir("/")
    return await Counting.start(self)


async def print_much(self: Any) -> Observation:
    print("\x1b[2Jnoise " * 100)
    return await Counting.start(self)


def step_without_async(self: Any, reply: str) -> Observation:
    return Observation.end(success=True)


def make_slowly(self: Any, task: Task) -> None:
    Counting.__init__(self, task)
    UNENDING.wait(LONG_S)


def made(init: Callable[..., Any]) -> type[Environment]:
    def begin(self: Any, task: Task) -> None:
        (init if task.id.startswith("bad") else Counting.__init__)(self, task)

    return type("Misbehaving", (Counting,), {"__init__": begin})


def refuse_to_be_made(self: Any, task: Task) -> None:
    raise SystemExit("no licence")


LONG_INTEGER = 10**400
UNREADABLE: Any = type("Unreadable", (tuple,), {"__iter__": lambda self: {}["gone"]})("a")
DEEP: Any = {}
for _ in range(2000):
    DEEP = {"a": DEEP}

# What the bad episodes are lost for; None where they come to their end all the same.
ENVIRONMENTS: dict[str, tuple[type[Environment], str | None]] = {
    "start hangs": (misbehaving(start=hang), "start took longer than"),
    "start blocks": (misbehaving(start=block), "start took longer than"),
    "start raises": (misbehaving(start=raising(ValueError("no"))), r"raised ValueError: no \(.*misbehaving.py:\d+\)"),
    "start exits": (misbehaving(start=raising(SystemExit(3))), "start raised SystemExit: 3"),
    "start returns None": (misbehaving(start=returning(None)), "start returned None; it must return an Observation"),
    "start starts tasks without end": (misbehaving(start=start_tasks_without_end), None),
    "start starts a task that blocks": (misbehaving(start=start_a_task_that_blocks), "took longer than"),
    "start changes the task": (misbehaving(start=change_the_task), None),
    "start changes the folder": (misbehaving(start=change_the_folder), None),
    "start prints": (misbehaving(start=print_much), None),
    "start says nothing": (misbehaving(start=answering(messages=())), "start must end with something"),
    "making it blocks": (made(make_slowly), r"Misbehaving\(task\) took longer than"),
    "making it exits": (made(refuse_to_be_made), r"Misbehaving\(task\) raised SystemExit: no licence"),
    "step hangs": (misbehaving(step=hang), "step took longer than"),
    "step blocks": (misbehaving(step=block), "step took longer than"),
    "step spins": (misbehaving(step=spin), "step took longer than"),
    "step refuses to end": (misbehaving(step=refuse_to_end), "step took longer than"),
    "step waits in another thread": (misbehaving(step=wait_in_a_thread), "step took longer than"),
    "step is cancelled": (misbehaving(step=raising(asyncio.CancelledError)), "step raised CancelledError"),
    "step cancels itself": (misbehaving(step=cancel_itself), "it was cancelled|CancelledError"),
    "step cancels everything": (misbehaving(step=cancel_everything), "it was cancelled|CancelledError"),
    "step interrupts": (misbehaving(step=raising(KeyboardInterrupt)), "step raised KeyboardInterrupt"),
    "step exits": (misbehaving(step=raising(SystemExit)), "step raised SystemExit"),
    "step exits a generator": (misbehaving(step=raising(GeneratorExit)), "step raised GeneratorExit"),
    "step stops an iteration": (misbehaving(step=raising(StopIteration)), "step raised RuntimeError"),
    "step stops an async iteration": (misbehaving(step=raising(StopAsyncIteration)), "step raised StopAsyncIteration"),
    "step exits in a task": (misbehaving(step=exit_in_a_task), "its event loop was stopped"),
    "step stops the loop": (misbehaving(step=stop_the_loop), "its event loop was stopped"),
    "step closes the loop": (misbehaving(step=close_the_loop), "step raised RuntimeError"),
    "step recurses": (misbehaving(step=recurse), "step raised RecursionError"),
    "step runs out of memory": (misbehaving(step=raising(MemoryError)), "step raised MemoryError"),
    "step has a time-out": (misbehaving(step=raising(TimeoutError("db"))), "step raised TimeoutError: db"),
    "step raises a group": (misbehaving(step=raising(BaseExceptionGroup("all", [SystemExit()]))), "BaseExceptionGroup"),
    "step is not async": (misbehaving(step=step_without_async), None),
    "step returns text": (misbehaving(step=returning("Yes.")), "step returned 'Yes.'"),
    "step returns a coroutine": (misbehaving(step=returning(lambda: hang(None))), "step returned a coroutine"),
    "the reward is text": (misbehaving(step=answering(reward="1")), "gave the reward '1'"),
    "the reward is no number": (misbehaving(step=answering(reward=float("nan"))), "gave the reward nan"),
    "the reward is too large": (misbehaving(step=answering(reward=LONG_INTEGER)), "gave the reward 1000"),
    "the success is text": (misbehaving(step=answering(success="yes")), "gave the success 'yes'"),
    "the messages are text": (misbehaving(step=answering(messages="Yes.")), "gave the messages 'Yes.'"),
    "a message is text": (misbehaving(step=answering(messages=("Yes.",))), "gave the messages"),
    "a message is the agent's": (
        misbehaving(step=answering(messages=(Message(role="assistant", content="I won."),))),
        "step returned an observation that cannot be kept: .*assistant",
    ),
    "the action is a number": (misbehaving(step=answering(action=3)), "gave the action 3"),
    "the state is a number": (misbehaving(step=answering(state=3)), "gave the state 3"),
    "half a surrogate pair is said": (misbehaving(step=saying("a\ud800")), "half a surrogate pair at character 2"),
    "NUL is said": (misbehaving(step=saying("a\0b")), None),
    "100 million characters are said": (misbehaving(step=saying("a" * 100_000_000)), "returned 100,000,000 characters"),
    "the messages cannot be read": (misbehaving(step=answering(messages=UNREADABLE)), "step raised KeyError"),
    "the tools are not JSON": (misbehaving(start=answering(tools=({"a": object()},), terminated=False)), "be kept"),
    "the tools are too deep": (misbehaving(start=answering(tools=(DEEP,), terminated=False)), "cannot be|as JSON"),
    "expert hangs": (misbehaving(expert=hang), "expert took longer than"),
    "expert blocks": (misbehaving(expert=block), "expert took longer than"),
    "expert gives a number": (misbehaving(expert=returning(3)), "expert returned 3"),
    "close hangs": (misbehaving(close=hang), None),
    "close blocks": (misbehaving(close=block), None),
    "close raises": (misbehaving(close=raising(ValueError("busy"))), None),
    "close exits": (misbehaving(close=raising(SystemExit)), None),
    "shutdown hangs": (misbehaving(shutdown=hang), None),
    "shutdown blocks": (misbehaving(shutdown=block), None),
    "shutdown raises": (misbehaving(shutdown=raising(ValueError("busy"))), None),
    "shutdown exits": (misbehaving(shutdown=raising(SystemExit)), None),
}  # fmt: skip
