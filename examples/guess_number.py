"""Guess a hidden whole number: a whole environment.

bough env check examples/guess_number.py:GuessNumber
bough play examples/guess_number.py:GuessNumber
"""

import random
import re
from collections.abc import Iterator

from bough import Environment, Observation, Task


class GuessNumber(Environment):
    """Guess a hidden whole number; the environment answers "Higher." or "Lower."."""

    max_turns = 10

    @classmethod
    def tasks(cls, options: Environment.Options, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        rng = random.Random(f"{split} {seed}")
        for number in range(1000):
            yield Task(id=f"{split}-{seed}-{number}", data={"low": 1, "high": 100, "secret": rng.randint(1, 100)})

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.low, self.high, self.secret = (int(task.data[key]) for key in ("low", "high", "secret"))

    async def start(self) -> Observation:
        return Observation.say(f"I picked a whole number from {self.low} to {self.high}. Guess it.")

    async def step(self, reply: str) -> Observation:
        numbers = re.findall(r"-?\d+", reply)
        if not numbers:
            return Observation.say("Please answer with one whole number.", error="malformed")
        # Models reason aloud before they commit, so the last number is the guess.
        guess = int(numbers[-1][:9])
        if guess == self.secret:
            return Observation.end("Correct.", success=True, reward=1.0, action=str(guess))
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
            return Observation.say("Higher.", action=str(guess))
        self.high = min(self.high, guess - 1)
        return Observation.say("Lower.", action=str(guess))

    async def expert(self) -> str:
        return str((self.low + self.high) // 2)
