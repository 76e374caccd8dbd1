"""Mistake rules: what only an environment can tell about a turn, from its own texts.

Loops and invalid actions are found without knowing any text (`mistakes.py`).
An environment adds what it knows by returning rules of its own:

    class ShopRules(MistakeRules):
        def claims_success(self, turn: Turn) -> bool:
            return action_of(turn) == "checkout"

        def own(self) -> Mapping[str, Rule]:
            return {"bought_twice": bought_twice}

    class Shop(Environment):
        @classmethod
        def mistake_rules(cls) -> MistakeRules:
            return ShopRules()

They are used for episodes of that environment only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bough.config.base import Config
from bough.speech.hermes import reply_text
from bough.types import Trajectory, Turn

# Whether turn `at` of a trajectory is a mistake.
Rule = Callable[[Trajectory, int], bool]


class MistakeRules:
    """The rules of one environment. The defaults know no text: only replies marked as errors had no effect."""

    class Options(Config):
        """Settings of the rules, given with `--rule-options`."""

    def without_effect(self, turn: Turn) -> bool:
        """Whether the turn left the environment as it was. A malformed call may have been carried out all the same."""
        carried_out = turn.error == "malformed" and any(message.role == "tool" for message in turn.observation)
        return turn.error is not None and not carried_out

    def claims_success(self, turn: Turn) -> bool:  # noqa: ARG002
        """Whether the turn says that the task is done."""
        return False

    def own(self) -> Mapping[str, Rule]:
        """Further rules by the reason they give, the most telling first."""
        return {}

    def learn(self, trajectories: Iterable[Trajectory], options: Any) -> MistakeRules:  # noqa: ARG002
        """The rules adapted to recorded episodes. `options` is of the class's own `Options`."""
        return self


def action_of(turn: Turn) -> str:
    """What was done in a turn: its action, or the whole reply where no action was recognised."""
    return turn.action if turn.action is not None else reply_text(turn.reply)
