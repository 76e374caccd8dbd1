"""Groups whose attempts all have the same reward: how many there are, of which kind, and what to try.

GRPO learns nothing from them. What helps depends on the reason: a policy that hardly varies needs
other sampling, tasks that are too hard need a start nearer to the goal, and tasks that are too
easy need a finer comparison or harder tasks.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from bough.methods.distill import OnlineConfig
from bough.methods.grpo import GRPOConfig
from bough.speech.reply import Reply
from bough.types import Group

log = logging.getLogger(__name__)

Kind = Literal["same", "failed", "succeeded", "equal"]
# Groups that are counted before a warning, and the share of them that must have taught nothing.
ENOUGH, MOST = 16, 0.5
WORDS: dict[Kind, str] = {
    "same": "all attempts were the same, word for word",
    "failed": "all attempts failed",
    "succeeded": "all attempts succeeded",
    "equal": "all attempts had the same reward",
}


class FlatGroups:
    """Counts groups as they are used, and warns once if most of them teach nothing."""

    def __init__(self, config: OnlineConfig) -> None:
        self.config = config
        self.num_groups = 0
        self.kinds: Counter[Kind] = Counter()
        self._warned = False

    def note(self, group: Group | None, reason: str) -> None:
        """Counts a group that is used up; `reason` says why it teaches nothing, "" if it does."""
        self.num_groups += 1
        if reason == "zero_variance" and group is not None:
            self.kinds[kind_of(group)] += 1

    def warn(self) -> None:
        """Says it if most groups teach nothing: once in a run."""
        if self._warned or self.num_groups < ENOUGH or self.kinds.total() <= MOST * self.num_groups:
            return
        self._warned = True
        log.warning("%d of %d groups teach nothing%s", self.kinds.total(), self.num_groups, self.advice())

    def advice(self) -> str:
        """The settings to try, as the end of a sentence; nothing where no group was flat."""
        if not self.kinds:
            return ""
        parts = [
            f"in {count} of them {WORDS[kind]} (try {_listed(self.ways(kind))})"
            for kind, count in self.kinds.most_common()
        ]
        return f": {'; '.join(parts)}"

    def ways(self, kind: Kind) -> Iterator[str]:
        """What to try against one kind of flat groups."""
        config, rollouts = self.config, self.config.rollouts
        grpo = config if isinstance(config, GRPOConfig) else None
        highest = max(config.sampling.all_temperatures)
        if kind == "same":
            several = bool(grpo and grpo.sampling.temperatures)
            yield f"{'--temperatures' if several else 'a --temperature'} above {highest:g}"
            if grpo and not grpo.sampling.temperatures:
                yield f"--temperatures {highest:g} {highest * 1.5:g}"
            if grpo and not grpo.entropy_coef:
                yield "--entropy-coef 0.001 from the start of training"
            return
        if kind == "succeeded":
            yield "harder tasks"
            if grpo and grpo.advantage not in ("state", "graph"):
                yield "--advantage state, which also compares the steps of attempts that all succeed"
            if grpo and not grpo.rewards:
                yield "--rewards with a part for shorter episodes, such as steps=0.5"
        else:
            yield "easier tasks"
            if rollouts.reset_file is None:
                yield "--reset-file with successful episodes, to start near the goal"
            if grpo and not grpo.rewards:
                yield "--rewards with a part for progress, such as progress=0.5"
            yield f"--group-size above {rollouts.group_size}"
        if rollouts.task_pool is None:
            yield "--task-pool, which draws tasks with mixed results more often"


def kind_of(group: Group) -> Kind:
    """Why the rewards of a group are equal."""
    replies = {tuple((turn.reply.reasoning, Reply.of(turn.reply)) for turn in one.turns) for one in group.attempts}
    if len(replies) == 1:
        return "same"
    outcomes = {attempt.success for attempt in group.attempts}
    if outcomes == {True}:
        return "succeeded"
    return "failed" if outcomes == {False} else "equal"


def _listed(ways: Iterator[str]) -> str:
    *most, last = ways
    return f"{', '.join(most)} or {last}" if most else last
