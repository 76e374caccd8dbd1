"""Settings of `bough pairs`, and pairs of one turn: the same state, two next replies.

Attempts at one task form a tree of states. A failure parts from success in the last state that some success went
through, with an action that no success took there. The chosen reply is that of the success that was nearest to its
end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from bough.config.base import Config
from bough.config.groups import OptionValues, key_values
from bough.curation.source import CurationConfig, SourcedTrajectory
from bough.curation.states import RulesOf, State, states
from bough.environments.base import action_of
from bough.ledger import Ledger
from bough.types import Pair, Trajectory, Turn, conversation

REWARD = "the reward to compare by (default: total, else the only reward, else the outcome)"
PARTING = "parting"


class EpisodePairsConfig(Config):
    """Pairs of whole episodes."""

    match: Literal["shortest_success", "nearest_failure", "all"] = Field(
        "nearest_failure",
        description="shortest_success: pair each failure with the shortest success; nearest_failure: pair each success "
        "with the failure that shares the longest prefix; all: every success with every failure",
    )
    per_task: int = Field(4, ge=1, description="maximum number of episode pairs per task")
    progress_margin: float | None = Field(
        None,
        gt=0,
        le=1,
        description="also pair two failures whose progress differs by at least this much (default: no such pairs)",
    )


class FailureModesConfig(Config):
    """Pairs from mistakes found by rules."""

    reasons: list[str] = Field([], description="which mistakes to look for (default: all that the rules find)")
    rules: str | None = Field(
        None,
        description="the environment whose mistake rules to apply (default: the environment that each task names; "
        "generic rules where it names none)",
    )
    rule_options: OptionValues = Field({}, description="settings of the environment's mistake rules as key=value")
    better: list[Literal["success", "expert"]] = Field(
        ["success", "expert"],
        description="where the better action comes from, in this order: a success in the same state, or the "
        "environment's expert",
    )
    per_trajectory: int = Field(2, ge=1, description="maximum number of pairs per reason and trajectory")
    caps: Annotated[dict[str, Annotated[int, Field(ge=0)]], BeforeValidator(key_values)] = Field(
        {}, description="maximum number of pairs per reason, such as loop=200 parting=500"
    )
    shares: Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], BeforeValidator(key_values)] = Field(
        {}, description="maximum fraction of all pairs per reason, such as loop=0.3"
    )


class PairsConfig(CurationConfig):
    """Finds preference pairs in episodes: a better and a worse continuation from the same state."""

    command = "pairs"

    reward: str | None = Field(None, description=REWARD)
    kinds: list[Literal["episode", "parting", "failure_mode", "right_step"]] = Field(
        ["episode"],
        description="episode: a success against a failure; parting: the round where a failure diverged from a success; "
        "failure_mode: mistakes found by rules; right_step: steps of a success against mistakes it did not make",
    )
    episodes: EpisodePairsConfig = EpisodePairsConfig()
    failure_modes: FailureModesConfig = FailureModesConfig()
    seed: int = Field(0, ge=0, description="random seed")
    environment: str | None = Field(
        None, description="the environment to replay in, for an expert and right steps (default: that of the tasks)"
    )


@dataclass
class Crossing:
    """A state that attempts went through: the successes, and of each action the number of successes and of plays."""

    successes: list[tuple[SourcedTrajectory, int]] = field(default_factory=list)
    plays: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def rate(self, action: str) -> float:
        """The expected success rate under a uniform prior: (s + 1) / (n + 2)."""
        successes, plays = self.plays[action]
        return (successes + 1) / (plays + 2)


class StateTree:
    """The states of all attempts whose outcome is known."""

    def __init__(self, filed: Sequence[SourcedTrajectory], rules_of: RulesOf) -> None:
        self.crossings: defaultdict[State, Crossing] = defaultdict(Crossing)
        for item in filed:
            success, turns, rules, counted = item.trajectory.success, item.trajectory.turns, rules_of(item), set()
            if success is None:
                continue
            for at, (state, turn) in enumerate(zip(states(item.trajectory, rules), turns, strict=False)):
                crossing, action = self.crossings[state], action_of(turn)
                if success and turn.error is None and not rules.without_effect(turn):
                    crossing.successes.append((item, at))
                # An attempt that returns to a state and repeats its action there is still one attempt.
                if (state, action) not in counted:
                    counted.add((state, action))
                    crossing.plays[action][0] += success
                    crossing.plays[action][1] += 1

    def way_on(
        self, state: State, not_as: str, sound: Callable[[Turn], bool] = lambda _: True
    ) -> tuple[SourcedTrajectory, int] | None:
        """The success nearest to its end that took another, sound action in this state, and the number of its turn."""
        found = self.crossings[state].successes if state in self.crossings else []
        others = sorted(found, key=lambda other: len(other[0].trajectory.turns) - other[1])
        turns = ((item.trajectory.turns[at], item, at) for item, at in others)
        return next(((item, at) for turn, item, at in turns if action_of(turn) != not_as and sound(turn)), None)


def round_pairs(filed: Sequence[SourcedTrajectory], ledger: Ledger, *, rules_of: RulesOf) -> list[Pair]:
    """One pair for every failure that parts from a success; failures with the same action there make one pair."""
    tree, seen, found = StateTree(filed, rules_of), set(), []
    for item in filed:
        if item.trajectory.success is not False:
            continue
        turns, rules = item.trajectory.turns, rules_of(item)
        path = states(item.trajectory, rules)[:-1]
        at = next((t for t in reversed(range(len(path))) if tree.crossings[path[t]].successes), None)
        if at is None:
            ledger.drop("no_success_came_by")
            continue
        state, crossing = path[at], tree.crossings[path[at]]
        if crossing.plays[action_of(turns[at])][0]:
            # A success took the same action: this attempt was cut short before it did anything else.
            ledger.drop("never_part")
            continue
        if rules.without_effect(turns[at]):  # invalid replies do not change the state; learn from the first of them
            at = path.index(state)
        action = action_of(turns[at])
        way = tree.way_on(state, action)
        if (state, action) in seen or way is None:  # None: every success took this action here
            ledger.drop("duplicate" if (state, action) in seen else "never_part")
            continue
        seen.add((state, action))
        ledger.keep()
        other, other_at = way
        turn = other.trajectory.turns[other_at]
        better = action_of(turn)
        info: dict[str, JsonValue] = {
            "chosen": {**other.place, "turn": other_at},
            "plays": {"chosen": [*crossing.plays[better]], "rejected": [*crossing.plays[action]]},
        }
        moved_turn = moved(turn, other.trajectory, other_at, item.trajectory, at)
        margin = crossing.rate(better) - crossing.rate(action)
        found.append(round_pair(item, at, moved_turn, reason=PARTING, margin=margin, info=info))
    return found


def round_pair(
    item: SourcedTrajectory,
    at: int,
    better: Turn,
    worse: Turn | None = None,
    *,
    reason: str,
    margin: float | None = None,
    info: dict[str, JsonValue],
) -> Pair:
    """A better reply against turn `at` of a trajectory (or against `worse`), after the trajectory's history."""
    trajectory = item.trajectory
    place: dict[str, JsonValue] = {"rule": reason, "turn": at, "history": item.place}
    return Pair(
        task=trajectory.task,
        start=conversation(trajectory.start, trajectory.turns[:at]),
        chosen=[better],
        rejected=[worse or trajectory.turns[at]],
        tools=trajectory.tools,
        reason=reason,
        margin=margin,
        info=place | info,
    )


def moved(turn: Turn, origin: Trajectory, at: int, to: Trajectory, to_at: int) -> Turn:
    """A turn as it follows another trajectory's history.

    Its exact tokens belong to the history they were sampled after: they are kept if the
    two histories are equal message for message, else dropped.
    """
    same = conversation(origin.start, origin.turns[:at]) == conversation(to.start, to.turns[:to_at])
    return turn if same else turn.model_copy(update={"call": None})
