"""A calendar whose actions are tool calls: a whole environment with tools.

bough env check examples/tool_environment.py:Calendar
bough play examples/tool_environment.py:Calendar
bough collect --environment examples/tool_environment.py:Calendar --model expert -o runs/calendar
"""

import random
from collections.abc import Iterator

from bough import Environment, Observation, Task, ToolEnvironment, ToolError, tool

RULES = "You manage a calendar. Every meeting takes one hour. Use the tools."


class Calendar(ToolEnvironment):
    """Book a meeting at the first free hour of a day."""

    max_turns = 6
    reward_range = (0.0, 1.0)

    @classmethod
    def tasks(cls, options: Environment.Options, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        rng = random.Random(f"{split} {seed}")
        for number in range(1000):
            busy = sorted(rng.sample(range(9, 17), k=rng.randint(1, 7)))
            yield Task(id=f"{split}-{seed}-{number}", data={"person": rng.choice(["Ada", "Grace"]), "busy": busy})

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.person, self.busy = str(task.data["person"]), list(task.data["busy"])
        self.first_free = min(hour for hour in range(9, 18) if hour not in self.busy)
        self.looked = False

    def start(self) -> Observation:
        return Observation.begin(RULES, f"Book a meeting with {self.person} at the first free hour, from 9 to 17.")

    @tool
    def busy_hours(self) -> list[int]:
        """Lists the hours at which there is a meeting already."""
        self.looked = True
        return self.busy

    @tool
    def book(self, person: str, hour: int) -> str:
        """Books a meeting. This ends the task.

        Args:
            person: Who takes part.
            hour: When it starts, from 9 to 17.
        """
        if hour in self.busy or not 9 <= hour <= 17:
            raise ToolError(f"{hour} o'clock is not free.")
        right = person == self.person and hour == self.first_free
        self.end(success=right, reward=float(right))
        return f"Booked {person} at {hour} o'clock."

    def expert(self) -> str:
        return self.call("book", person=self.person, hour=self.first_free) if self.looked else self.call("busy_hours")
