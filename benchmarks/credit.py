"""Bias and variance of GRPO's advantages, against the truth in a world where it is known.

    python benchmarks/credit.py [--groups 2000] [--output FILE]

A chain of rooms: an attempt goes forward, goes back or gives up, and is rewarded with 1 in the last
room. The policy's true values, advantages and gradient follow by dynamic programming. Many groups of
attempts are played, and every estimator of `bough.methods` is compared with the truth, all without
division by a standard deviation and without discount, so that all of them estimate the same thing.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pvariance

from bough.curation.advantages import Step, Steps, compare_by_state, group_advantages, lookahead, returns

Estimate = list[list[float]]
Estimator = Callable[[list[list[Step]]], Estimate]
Vector = list[float]


@dataclass(frozen=True)
class Chain:
    """Rooms 0 to `length` − 1; going forward from the last one succeeds."""

    length: int = 6
    forward: float = 0.7
    back: float = 0.2

    @property
    def policy(self) -> Vector:
        return [self.forward, self.back, 1 - self.forward - self.back]

    def move(self, room: int, action: int) -> tuple[float, int | None]:
        """The reward, and the next room; None if the attempt is over."""
        if action == 0:
            return (1.0, None) if room == self.length - 1 else (0.0, room + 1)
        return (0.0, max(room - 1, 0)) if action == 1 else (0.0, None)

    def values(self) -> Vector:
        """The probability of success from each room."""
        found = [0.0] * self.length
        for _ in range(2_000):
            found = [sum(p * self.worth(room, a, found) for a, p in enumerate(self.policy)) for room in self.rooms]
        return found

    def worth(self, room: int, action: int, values: Sequence[float]) -> float:
        reward, after = self.move(room, action)
        return reward + (values[after] if after is not None else 0.0)

    def advantages(self) -> list[Vector]:
        """The true advantage of each action in each room."""
        values = self.values()
        return [[self.worth(room, action, values) - values[room] for action in range(3)] for room in self.rooms]

    def visits(self) -> Vector:
        """The expected number of steps from each room in one attempt."""
        found = [0.0] * self.length
        for _ in range(2_000):
            following = [1.0 if room == 0 else 0.0 for room in self.rooms]
            for room in self.rooms:
                for action, p in enumerate(self.policy):
                    _, after = self.move(room, action)
                    if after is not None:
                        following[after] += found[room] * p
            found = following
        return found

    def gradient(self) -> Vector:
        """That of the probability of success, in the logits of a softmax policy, room by room."""
        return [
            visits * p * advantage
            for visits, of_room in zip(self.visits(), self.advantages(), strict=True)
            for p, advantage in zip(self.policy, of_room, strict=True)
        ]

    @property
    def rooms(self) -> range:
        return range(self.length)

    def play(self, rng: random.Random) -> tuple[list[Step], list[tuple[int, int]]]:
        """An attempt: its steps, and the room and action of each."""
        room: int | None = 0
        steps, done = [], []
        while room is not None:
            [action] = rng.choices(range(3), self.policy)
            reward, after = self.move(room, action)
            steps.append(Step(str(room), reward, None if after is None else str(after)))
            done.append((room, action))
            room = after
        return steps, done


def plain(attempts: list[list[Step]]) -> Estimate:
    found = group_advantages([sum(step.reward for step in steps) for steps in attempts], normalise=False).values
    return [[value or 0.0] * len(steps) for value, steps in zip(found, attempts, strict=True)]


def by_state(attempts: list[list[Step]]) -> Estimate:
    known: list[Steps] = [*attempts]
    return [steps or [] for steps in compare_by_state(known, returns(known, 1.0), normalise=False)]


def by_graph(attempts: list[list[Step]]) -> Estimate:
    known: list[Steps] = [*attempts]
    return [steps or [] for steps in compare_by_state(known, lookahead(known, 1.0), normalise=False)]


def both(first: Estimator, second: Estimator) -> Estimator:
    def added(attempts: list[list[Step]]) -> Estimate:
        sides = zip(first(attempts), second(attempts), strict=True)
        return [[a + b for a, b in zip(left, right, strict=True)] for left, right in sides]

    return added


ESTIMATORS: dict[str, Estimator] = {
    "attempt (GRPO)": plain,
    "state, attempt_weight 0": by_state,
    "state (GiGPO)": both(plain, by_state),
    "graph, attempt_weight 0": by_graph,
    "graph": both(plain, by_graph),
}


@dataclass(frozen=True)
class Quality:
    """How far from the truth: of a step's advantage, and of the gradient of one group.

    `bias` and `deviation` are root mean squares over steps. `cosine` is that between the mean
    gradient and the true one; `noise` is the deviation of a group's gradient over the mean's length.
    """

    bias: float
    deviation: float
    cosine: float
    noise: float


def measure(world: Chain, estimator: Estimator, *, groups: int, size: int = 8, seed: int = 0) -> Quality:
    rng, truth = random.Random(seed), world.advantages()
    estimates: dict[tuple[int, int], Vector] = defaultdict(list)
    gradients: list[Vector] = []
    for _ in range(groups):
        played = [world.play(rng) for _ in range(size)]
        gradient = [0.0] * (3 * world.length)
        for (_, done), values in zip(played, estimator([steps for steps, _ in played]), strict=True):
            for (room, action), value in zip(done, values, strict=True):
                estimates[room, action].append(value)
                for other, p in enumerate(world.policy):
                    gradient[3 * room + other] += value * ((other == action) - p) / size
        gradients.append(gradient)
    count = sum(map(len, estimates.values()))
    bias = sum(len(v) * (fmean(v) - truth[room][action]) ** 2 for (room, action), v in estimates.items()) / count
    variance = sum(len(v) * pvariance(v) for v in estimates.values()) / count
    columns = list(zip(*gradients, strict=True))
    mean, true = [fmean(column) for column in columns], world.gradient()
    length = math.hypot(*mean)
    cosine = sum(a * b for a, b in zip(mean, true, strict=True)) / length / math.hypot(*true)
    return Quality(math.sqrt(bias), math.sqrt(variance), cosine, math.sqrt(sum(map(pvariance, columns))) / length)


def table(world: Chain, *, groups: int, size: int = 8, seed: int = 0) -> str:
    rows = [
        f"A chain of {world.length} rooms: forward {world.forward:g}, back {world.back:g}, otherwise give up; success "
        f"{world.values()[0]:.3f}. {groups:,} groups of {size} attempts, seed {seed}.\n",
        "| advantage | bias of a step | deviation of a step | cosine of the mean gradient with the true one "
        "| noise of a group's gradient |",
        "|---|---|---|---|---|",
    ]
    for name, estimator in ESTIMATORS.items():
        found = measure(world, estimator, groups=groups, size=size, seed=seed)
        rows.append(f"| {name} | {found.bias:.3f} | {found.deviation:.3f} | {found.cosine:.3f} | {found.noise:.2f} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    text = "\n".join(table(Chain(length), groups=given.groups) for length in (3, 6, 12))
    print(text)
    if given.output is not None:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
