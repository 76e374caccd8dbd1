"""The calls of a record's turns, each kept or dropped with its reason."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bough.errors import RowError
from bough.ledger import Ledger
from bough.types import Call, Message, Turn

if TYPE_CHECKING:
    from bough.calls.builder import CallBuilder


class CallSource:
    """Builds the calls of turns and counts them."""

    def __init__(self, builder: CallBuilder, ledger: Ledger) -> None:
        self.builder, self.ledger = builder, ledger

    def calls(
        self, start: list[Message], turns: list[Turn], tools: list[dict[str, Any]], *, corrections: bool = False
    ) -> dict[int, Call]:
        """The calls of the trained turns, by turn; those that cannot be trained are dropped with their reason.

        Without `corrections`, what was sampled is what is trained: a turn that has one raises RowError.
        """
        if not corrections and any(turn.correction for turn in turns):
            raise RowError("has_corrections", "this episode has corrections; only SFT learns from them")
        found = {}
        for built in self.builder.build(start, turns, tools):
            if built.call is None:
                assert built.reason is not None
                self.ledger.drop(built.reason)
            else:
                self.ledger.keep()
                found[built.turn] = built.call
        return found


def count_calls(ledger: Ledger, of_row: Ledger, trained: int, reason: str) -> None:
    """Counts a row's calls: `trained` of them are kept, the other good ones are dropped for `reason`."""
    ledger.keep(trained)
    for why, count in (of_row.dropped + Counter({reason: of_row.kept - trained})).items():
        ledger.drop(why, count)
