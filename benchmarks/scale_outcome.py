"""What came of a simulated run: its batches, and the numbers of those after the warm-up."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.scale_admission import Taken


@dataclass
class Batch:
    """What one batch took, and when: `at_s` it was complete, `trained_s` is how long its update took."""

    at_s: float
    groups: list[int]
    flat: list[int]
    stale: list[int]
    ages: dict[int, float]  # tokens by age
    fresh: list[float]  # tokens that are learnt from, by group
    stale_tokens: float
    trained_s: float = 0.0
    everywhere_s: float = 0.0  # from the end of the update until all engines could have the new weights

    @classmethod
    def of(cls, taken: Taken, number: int, max_staleness: int, now: float) -> Batch:
        ages: dict[int, float] = {}
        every = [group.tokens for group in (*taken.chosen, *taken.stale)]
        for tokens in every:
            for version, count in tokens.items():
                if number - version <= max_staleness:
                    ages[number - version] = ages.get(number - version, 0.0) + count
        fresh = [group.fresh(number, max_staleness) for group in taken.chosen]
        stale = sum(sum(tokens.values()) for tokens in every) - sum(fresh)
        groups, flat, old = ([one.number for one in some] for some in (taken.chosen, taken.flat, taken.stale))
        return cls(now, groups, flat, old, ages, fresh, stale)


@dataclass
class Outcome:
    """Sums over the batches after the warm-up, and all batches."""

    seconds: float = 0.0
    episodes: int = 0
    rollout_idle: float = 0.0  # share of the time in which an engine has nothing to decode
    rollout_use: float = 0.0  # tokens sampled, of what full engines would sample
    learner_idle: float = 0.0
    driver_busy: float = 0.0
    admitted: int = 0  # groups
    open_groups: int = 0  # at the end
    ended_groups: int = 0  # that no batch has taken by the end
    replayed: int = 0
    shrink: int = 1
    batches: list[Batch] = field(default_factory=list)
    warm_up: int = 0

    @property
    def measured(self) -> list[Batch]:
        return self.batches[self.warm_up :]

    @property
    def episodes_per_s(self) -> float:
        return self.episodes * self.shrink / self.seconds

    @property
    def learnt(self) -> float:
        """Sampled tokens that are learnt from."""
        return sum(sum(batch.ages.values()) for batch in self.measured)

    @property
    def learnt_per_s(self) -> float:
        return self.learnt * self.shrink / self.seconds

    @property
    def staleness(self) -> float:
        """Mean age of the tokens that are learnt from, in batches."""
        return sum(age * tokens for batch in self.measured for age, tokens in batch.ages.items()) / self.learnt

    @property
    def stale_share(self) -> float:
        """Tokens that were dropped as too old, of those of groups that teach something."""
        stale = sum(batch.stale_tokens for batch in self.measured)
        return stale / (self.learnt + stale)

    @property
    def everywhere_s(self) -> float:
        return sum(batch.everywhere_s for batch in self.measured[:-1]) / max(1, len(self.measured) - 1)
