"""The ledger: every item is kept or dropped for a reason, and the sums agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from bough.plural import plural


@dataclass
class Ledger:
    """Counts of one kind of item (rows, calls, groups) in a stage."""

    item: str
    came_in: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def keep(self, count: int = 1) -> None:
        self.came_in += count
        self.kept += count

    def drop(self, reason: str, count: int = 1) -> None:
        self.came_in += count
        self.dropped[reason] += count

    def add(self, other: Ledger) -> None:
        """Adds the counts of another ledger of the same items."""
        self.came_in += other.came_in
        self.kept += other.kept
        self.dropped.update(other.dropped)

    def to_json(self) -> dict[str, Any]:
        assert self.came_in == self.kept + self.dropped.total(), "the ledger does not add up"
        return {"item": self.item, "in": self.came_in, "kept": self.kept, "dropped": dict(self.dropped.most_common())}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        return cls(kept["item"], kept["in"], kept["kept"], Counter(kept["dropped"]))

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common())
        one = f"{self.item[:-3]}y" if self.item.endswith("ies") else self.item.removesuffix("s")
        came_in = plural(self.came_in, one, self.item)
        return f"{came_in} in, {self.kept} kept, {self.dropped.total()} dropped" + (f" ({reasons})" if reasons else "")
