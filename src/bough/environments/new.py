"""A new environment as files to change: the class, its test and a recipe that trains in it."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from bough.errors import InputError

ENVIRONMENT = '''"""TITLE: the agent buys what a list asks for, within its budget. Change all of it."""

import random

from bough import Task, ToolEnvironment, ToolError


class CLASS(ToolEnvironment):
    """Buy what the list asks for."""

    max_turns = 8

    @classmethod
    def tasks(cls, options, *, split="train", seed=0):
        """The same split and seed give the same tasks. A task's data fixes the start of the episode."""
        rng = random.Random(f"{split} {seed}")
        for number in range(1000):
            item, count = rng.choice(["apple", "pear", "plum"]), rng.randint(1, 5)
            yield Task(id=f"{split}-{seed}-{number}", data={"item": item, "count": count})

    def __init__(self, task):
        super().__init__(task)
        self.item, self.count = task.data["item"], task.data["count"]
        self.prices = {"apple": 0.5, "pear": 0.75, "plum": 0.25}
        self.basket = {}
        self.asked = False

    def start(self):
        """What the agent is told first."""
        return f"Ask for the price of one {self.item}, then buy {self.count}."

    def price(self, item: str) -> float:
        """Price of one item in euros.

        Args:
            item: What to ask for.
        """
        if item not in self.prices:
            raise ToolError(f"there is no {item}; there are {', '.join(self.prices)}.")
        self.asked = True
        return self.prices[item]

    def buy(self, item: str, count: int = 1) -> str:
        """Buys items.

        Args:
            item: What to buy.
            count: How many.
        """
        cost = count * self.price(item)
        self.basket[item] = self.basket.get(item, 0) + count
        return f"Bought {count} {item} for {cost:.2f} euros."

    def success(self):
        """Ends the episode as soon as it is true; a reply without a tool call ends it too."""
        return self.basket == {self.item: self.count}

    def expert(self):
        """The reply of an agent that solves the task: demonstrations for free. Leave it out if there is none."""
        if not self.asked:
            return self.call("price", item=self.item)
        return self.call("buy", item=self.item, count=self.count)
'''

TEST = '''"""Run it with: pytest MODULE"""

from pathlib import Path

import bough

ENVIRONMENT = f"{Path(__file__).with_name('MODULE.py')}:CLASS"


def test_the_contract_is_kept():
    assert bough.check(ENVIRONMENT, tasks=2).problems == []


def test_the_expert_wins():
    played = bough.collect("expert", ENVIRONMENT, tasks=4)
    assert all(trajectory.success for trajectory in played)


def test_a_wrong_item_is_refused():
    start, refused = bough.play(ENVIRONMENT, ["price('stone')"])
    assert refused.error == "invalid_action" and "there is no stone" in refused.text
'''

RECIPE = """# Files cannot name code, so the environment is given on the command line:
#   bough run MODULE/recipe.yaml --set defaults.environment=MODULE/MODULE.py:CLASS
name: MODULE
about: Learns from the expert of MODULE.py.
model: smollm2
defaults:
  limits: {max_turns: 4, max_errors: 2}
  sampling: {max_new_tokens: 64}
stages:
  - eval: {name: base, tasks: 40, split: unseen}
  - collect: {name: demonstrations, model: expert, tasks: 100}
  - demos:
  - sft: {max_steps: 40, batch_size: 4, learning_rate: 5.0e-4}
  - eval: {name: after-sft, tasks: 40, split: unseen}
"""


@dataclass(frozen=True)
class NewEnvironment:
    """What was written, and how it is used."""

    folder: Path
    files: tuple[Path, ...]
    commands: tuple[str, ...]


def new_environment(name: str, parent: Path) -> NewEnvironment:
    """Writes the files of a new environment into a folder of its name. Raises InputError where it exists."""
    module = name.replace("-", "_").lower()
    if not module.isidentifier() or not module.isascii() or keyword.iskeyword(module):
        raise InputError(f"{name!r} cannot be the name of an environment: use letters, digits, dashes and underscores")
    title = "".join(part.capitalize() for part in module.split("_"))
    folder = parent / module
    if folder.exists():
        raise InputError(f"{folder} exists; choose another name, or another folder with --output")
    folder.mkdir(parents=True)
    contents = {f"{module}.py": ENVIRONMENT, f"test_{module}.py": TEST, "recipe.yaml": RECIPE}
    words = {"MODULE": module, "CLASS": title, "TITLE": title}
    files = []
    for file, text in contents.items():
        files.append(folder / file)
        files[-1].write_text(re.sub("|".join(words), lambda found: words[found[0]], text))
    environment = f"{folder / module}.py:{title}"
    commands = (
        f"bough env check {environment}",
        f"pytest {folder}",
        f"bough run {folder / 'recipe.yaml'} --set defaults.environment={environment}",
    )
    return NewEnvironment(folder, tuple(files), commands)
