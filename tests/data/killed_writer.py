"""A program: writes trajectories until it is killed, and prints how many it knows to be on disk.

Warm("tests.data.killed_writer", FILE, FIRST, BATCH)
"""

import sys

from bough.data.writer import Writer
from bough.types import Call, Message, Task, Trajectory, Turn


def trajectory(number: int, tokens: int = 8) -> Trajectory:
    call = Call(prompt_ids=list(range(tokens)), completion_ids=[number], logprobs=[-0.25], text="x")
    return Trajectory(
        id=str(number),
        task=Task(id="t"),
        start=[Message(role="user", content="Hi")],
        turns=[Turn(reply=Message(role="assistant", content="x"), call=call)],
    )


def write(path: str, first: int, batch: int) -> None:
    with Writer(path, batch=batch) as writer:
        for number in range(first, first + 100000):
            writer.write(trajectory(number, tokens=200 + number % 300))
            print(first + writer.written, flush=True)


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
