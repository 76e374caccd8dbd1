"""Which groups the simulator starts when, and which of them a batch takes: as `bough.online.schedule` does.

`Pace` counts what has ended each time it is asked, which is fine for one machine's batches
and takes minutes for a hundred thousand groups; this keeps the counts. A test plays both
side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bough.online.schedule import DRAWS


@dataclass(eq=False)
class Group:
    """The attempts at one task: how many are open, and how many tokens each version of the weights sampled.

    `teaches` says whether its rewards differ.
    """

    number: int
    open: int
    teaches: bool
    tokens: dict[int, float] = field(default_factory=dict)

    def fresh(self, batch: int, max_staleness: int) -> float:
        """Tokens that batch `batch` may learn from."""
        return sum(tokens for version, tokens in self.tokens.items() if batch - version <= max_staleness)

    def age(self, batch: int, max_staleness: int) -> int:
        """That of the oldest token that may be learnt from."""
        return max(batch - version for version in self.tokens if batch - version <= max_staleness)


@dataclass(frozen=True)
class Taken:
    """What a batch takes: groups to learn from, those that teach nothing, and those that are too old as a whole."""

    chosen: list[Group]
    flat: list[Group]
    stale: list[Group]


class Admission:
    """Gathers batch `number`: `num_open` groups are in flight, the others have ended."""

    def __init__(self, size: int, budget: int, max_staleness: int) -> None:
        self.size, self.budget, self.max_staleness = size, budget, max_staleness
        self.number, self.num_open, self.draws, self.lead = 0, 0, 1, max_staleness
        self.ready: list[Group] = []
        self.flat: list[Group] = []
        self.stale: list[Group] = []
        self._taken = 0  # 1 from when the batch is taken

    @property
    def num_ended(self) -> int:
        return len(self.ready) + len(self.flat) + len(self.stale)

    @property
    def earliest(self) -> int:
        """The first batch that can take what is started now."""
        return self.number + self._taken

    def begin(self, number: int, num_later: int) -> None:
        """The next batch is wanted, and the run has `num_later` after it; some groups may be too old by now."""
        self.number, self.draws, self.lead = number, 1, min(self.max_staleness, num_later)
        self._taken = 0
        waiting, self.ready = self.ready, []
        for group in waiting:
            self._file(group)

    def room(self) -> int:
        """How many groups to start now."""
        ahead, tried = self.lead * self.size, self.num_ended + self.num_open
        room = min(self.size + ahead - len(self.ready) - self.num_open, self.draws * self.budget + ahead - tried)
        if not self.num_ended:
            room = min(room, max(2, self.size) + ahead - tried)
        return max(0, room)

    def start(self, count: int) -> None:
        self.num_open += count

    def end(self, group: Group) -> None:
        self.num_open -= 1
        self._file(group)

    def complete(self) -> bool:
        """Whether the batch can be taken; else more must end first."""
        if len(self.ready) >= self.size:
            return True
        if self.num_ended < self.draws * self.budget:
            return False
        if not self.ready and self.draws < DRAWS:
            self.draws += 1
            return False
        return True

    def take(self) -> Taken:
        """The oldest groups first; those beyond the batch stay for the next one."""
        age = {group.number: group.age(self.number, self.max_staleness) for group in self.ready}
        self.ready.sort(key=lambda group: (-age[group.number], group.number))
        taken = Taken(self.ready[: self.size], self.flat, self.stale)
        self.ready, self.flat, self.stale = self.ready[self.size :], [], []
        self.lead -= 1
        self._taken = 1
        return taken

    def _file(self, group: Group) -> None:
        if not group.teaches:
            self.flat.append(group)
        elif group.fresh(self.number, self.max_staleness):
            self.ready.append(group)
        else:
            self.stale.append(group)
