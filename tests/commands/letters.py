"""An environment that a test hands in as a class: write the letter that is asked for."""

from collections.abc import Iterator
from typing import Any

from bough import Environment, Observation, Task, Trajectory

LETTERS = """\
name: letters
model: tiny
defaults: {environment: WriteLetter, max_new_tokens: 4, tasks: 3}
stages:
  - collect: {model: expert}
  - demos: {}
  - sft: {max_steps: 1, learning_rate: 1.0e-3}
  - eval: {}
"""


class WriteLetter(Environment):
    """One turn; a reply with the letter in it succeeds, and the reward is the letter's share of the reply."""

    max_turns = 1

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        for number in range(40):
            yield Task(id=f"{split}-{seed}-{number}", data={"letter": "etaoin"[number % 6]})

    async def start(self) -> Observation:
        return Observation.say(f"Write {self.task.data['letter']}.")

    async def step(self, reply: str) -> Observation:
        share = reply.count(str(self.task.data["letter"])) / max(1, len(reply))
        return Observation.end(success=share > 0, reward=share)

    async def expert(self) -> str:
        return str(self.task.data["letter"])


def length(trajectory: Trajectory) -> float:
    return float(len(trajectory.turns[0].reply.content))


class CopyLetter(WriteLetter):
    """Only the letter alone is a success."""

    async def step(self, reply: str) -> Observation:
        right = reply.strip() == self.task.data["letter"]
        return Observation.end(success=right, reward=float(right))
