"""How a child differs from its parent: in nothing, in one setting, in rank, or by a second parent."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bough.evolution.ranges import Range

Kind = Literal["no_mutation", "hyper_parameter", "rank", "crossover"]
Settings = dict[str, Any]
# Draws until the settings of a child are valid together; then it stays as its parent is.
TRIES = 20


@dataclass(frozen=True)
class Mutation:
    """What was changed: of one `setting`, from `before` to `after`; for a crossover, the other parent's name."""

    kind: Kind
    setting: str | None = None
    before: Any = None
    after: Any = None
    other_parent: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        if self.setting is not None:
            return f"{self.setting} {self.before} → {self.after}"
        return f"crossover with {self.other_parent}" if self.other_parent else self.kind


@dataclass(frozen=True)
class Mutator:
    """Draws mutations. `weights` are the relative probabilities of the kinds.

    A hyper-parameter mutation changes one setting of `ranges`, each as likely as the others: with
    probability `resample` to a value drawn from its range, else by a factor `shrink` or `grow`.
    `valid` tells whether settings may be used together. The rank doubles, up to `max_rank`.
    """

    ranges: Mapping[str, Range]
    weights: Mapping[Kind, float]
    shrink: float
    grow: float
    resample: float
    max_rank: int
    valid: Callable[[Settings], bool]

    def kind(self, rng: random.Random) -> Kind:
        """The kind of a child's mutation."""
        kinds = [kind for kind, weight in self.weights.items() if weight > 0]
        if not kinds:
            return "no_mutation"
        return rng.choices(kinds, [self.weights[kind] for kind in kinds])[0]

    def hyper_parameter(self, settings: Settings, rng: random.Random) -> tuple[Settings, Mutation]:
        """The settings with one of them changed."""
        for _ in range(TRIES if self.ranges else 0):
            name = rng.choice(list(self.ranges))
            span, present = self.ranges[name], settings[name]
            if rng.random() < self.resample:
                value = span.draw(rng, present)
            else:
                value = span.perturb(present, rng, shrink=self.shrink, grow=self.grow)
            changed = {**settings, name: value}
            if self.valid(changed):
                return changed, Mutation("hyper_parameter", name, present, value)
        return settings, Mutation("no_mutation")

    def rank(self, rank: int) -> tuple[int, Mutation]:
        """Twice the rank, if that is allowed."""
        if 2 * rank > self.max_rank:
            return rank, Mutation("no_mutation")
        return 2 * rank, Mutation("rank", "lora_r", rank, 2 * rank)

    def sample(self, settings: Settings, rng: random.Random) -> Settings:
        """All mutable settings drawn from their ranges, for a member of the first generation."""
        for _ in range(TRIES):
            drawn = {name: span.draw(rng) for name, span in self.ranges.items()}
            if self.valid({**settings, **drawn}):
                return {**settings, **drawn}
        return settings
