"""Rounds: the turns of trajectories at which other replies are tried."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import exp, lgamma
from random import Random
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BeforeValidator, Field, JsonValue
from pydantic_core import to_json

from bough.config.base import Config
from bough.config.groups import AgentConfig, LimitsConfig, OptionValues, SamplingConfig
from bough.curation.source import CurationConfig, SourcedTrajectory
from bough.curation.states import RulesOf, State, states
from bough.environments.base import MistakeRules, action_of
from bough.files import MAX_JSON, open_file, open_own
from bough.ledger import Ledger
from bough.models.resolve import stamp
from bough.types import Pair, Trajectory, Turn, conversation

Better = Literal["success", "expert", "sample"]


REWARD = "the reward to compare by (default: total, else the only reward, else the outcome)"


Kind = Literal["episode", "parting", "failure_mode", "right_step", "counterfactual"]


def _counts(value: Any) -> Any:
    """`reason=number` arguments of the command line, as a mapping."""
    if not isinstance(value, list):
        return value
    if missing := [word for word in value if "=" not in str(word)]:
        raise ValueError(f"{missing[0]!r} must be written as reason=number")
    return dict(str(word).split("=", 1) for word in value)


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
    better: list[Better] = Field(
        ["success", "expert"],
        description="where the better action comes from, in this order: a success in the same state, the environment's "
        "expert, a sample of the model that led to a better result",
    )
    per_trajectory: int = Field(2, ge=1, description="maximum number of pairs per reason and trajectory")
    caps: Annotated[dict[str, Annotated[int, Field(ge=0)]], BeforeValidator(_counts)] = Field(
        {}, description="maximum number of pairs per reason, such as loop=200 parting=500"
    )
    shares: Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], BeforeValidator(_counts)] = Field(
        {}, description="maximum fraction of all pairs per reason, such as loop=0.3"
    )


class CounterfactualConfig(Config):
    """Pairs from replies that were tried out."""

    samples: int = Field(4, ge=1, description="number of alternative replies to sample in a round")
    scouts: int = Field(4, ge=1, description="rollouts per reply to find the best and the worst")
    plays: int = Field(12, ge=1, description="further rollouts of these two; only these count as evidence")
    rounds: int = Field(1, ge=1, description="number of rounds to examine per trajectory")
    certainty: float = Field(0.9, gt=0.5, lt=1, description="required probability that the better reply is better")
    against: Literal["worst", "recorded"] = Field(
        "worst", description="compare the best reply with the worst one or with the recorded one"
    )
    max_episodes: int = Field(1000, ge=1, description="maximum number of episodes to play")
    max_sampled_turns: int | None = Field(
        None, ge=1, description="maximum number of replies to sample (default: no limit)"
    )
    concurrency: int = Field(16, ge=1, description="episodes played at the same time")
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")


class PairsConfig(CurationConfig):
    """Finds preference pairs in episodes: a better and a worse continuation from the same state."""

    command = "pairs"

    reward: str | None = Field(None, description=REWARD)
    kinds: list[Kind] = Field(
        ["episode"],
        description="episode: a success against a failure; parting: the round where a failure diverged from a success; "
        "failure_mode: mistakes found by rules; right_step: steps of a success against mistakes it did not make; "
        "counterfactual: replies that were tried out",
    )
    episodes: EpisodePairsConfig = EpisodePairsConfig()
    failure_modes: FailureModesConfig = FailureModesConfig()
    counterfactual: CounterfactualConfig = CounterfactualConfig()
    agent: AgentConfig = AgentConfig()
    sampling: SamplingConfig = SamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    seed: int = Field(0, ge=0, description="random seed")
    environment: str | None = Field(
        None,
        description="the environment to replay in, for expert, sample and counterfactual (default: that of the tasks)",
    )


COUNTERFACTUAL = "counterfactual"


@dataclass(frozen=True)
class Round:
    """One turn of a trajectory, and why other replies are tried there."""

    item: SourcedTrajectory
    at: int
    reason: str = COUNTERFACTUAL


def sample_rounds(filed: Iterable[SourcedTrajectory], count: int, seed: int) -> list[Round]:
    """At most `count` rounds of each trajectory whose outcome is known, sampled where the model was least certain.

    A round's weight is one minus the probability of the recorded reply, where its
    log-probabilities are known.
    """
    found = []
    for item in filed:
        trajectory = item.trajectory
        if trajectory.success is None:
            continue
        rng = Random(f"{seed} {trajectory.id}")  # noqa: S311  no secret
        # Weighted sampling without replacement: the largest of u ** (1 / weight) (Efraimidis and Spirakis).
        keys = {at: rng.random() ** (1 / max(_openness(turn), 1e-6)) for at, turn in enumerate(trajectory.turns)}
        drawn = sorted(keys, key=lambda at: keys[at], reverse=True)[:count]
        found += [Round(item, at) for at in sorted(drawn)]
    return found


def _openness(turn: Turn) -> float:
    """The probability that another sample would have been another reply."""
    if turn.call is None or turn.call.logprobs is None:
        return 1.0
    return 1 - exp(min(0.0, sum(turn.call.logprobs)))


# Pairs of one turn: the same state, two next replies.
# Attempts at one task form a tree of states. A failure parts from success in the last state that some success went
# through, with an action that no success took there. The chosen reply is that of the success that was nearest to its
# end.

PARTING = "parting"


@dataclass
class Crossing:
    """A state that attempts went through: the successes, and the success rate of each action."""

    successes: list[tuple[SourcedTrajectory, int]] = field(default_factory=list)
    rates: dict[str, Rate] = field(default_factory=dict)


class StateTree:
    """The states of all attempts whose outcome is known."""

    def __init__(self, filed: Sequence[SourcedTrajectory], rules_of: RulesOf) -> None:
        self.rules_of = rules_of
        self.crossings: defaultdict[State, Crossing] = defaultdict(Crossing)
        for item in filed:
            if item.trajectory.success is not None:
                self._add(item, item.trajectory.success)

    def _add(self, item: SourcedTrajectory, success: bool) -> None:
        counted, rules = set(), self.rules_of(item)
        for at, (state, turn) in enumerate(zip(states(item.trajectory, rules), item.trajectory.turns, strict=False)):
            crossing, action = self.crossings[state], action_of(turn)
            if success and turn.error is None and not rules.without_effect(turn):
                crossing.successes.append((item, at))
            # An attempt that returns to a state and repeats its action there is still one attempt.
            if (state, action) not in counted:
                counted.add((state, action))
                crossing.rates[action] = crossing.rates.get(action, Rate(0, 0)) + Rate(int(success), 1)

    def way_on(
        self, state: State, not_as: str, sound: Callable[[Turn], bool] = lambda _: True
    ) -> tuple[SourcedTrajectory, int] | None:
        """The success nearest to its end that took another, sound action in this state, and the number of its turn."""
        crossing = self.crossings.get(state)
        if crossing is None:
            return None
        others = sorted(crossing.successes, key=lambda other: len(other[0].trajectory.turns) - other[1])
        turns = ((item.trajectory.turns[at], item, at) for item, at in others)
        return next(((item, at) for turn, item, at in turns if action_of(turn) != not_as and sound(turn)), None)


def round_pairs(filed: Sequence[SourcedTrajectory], ledger: Ledger, *, rules_of: RulesOf) -> list[Pair]:
    """One pair for every failure that parts from a success; failures with the same action there make one pair."""
    tree, seen, found = StateTree(filed, rules_of), set(), []
    for item in filed:
        if item.trajectory.success is not False:
            continue
        parting = _parting(item.trajectory, tree, rules_of(item))
        if isinstance(parting, str):
            ledger.drop(parting)
            continue
        at, state = parting
        action = action_of(item.trajectory.turns[at])
        if (state, action) in seen:
            ledger.drop("duplicate")
            continue
        way = tree.way_on(state, action)
        if way is None:  # every success took this action here
            ledger.drop("never_part")
            continue
        seen.add((state, action))
        ledger.keep()
        found.append(_parting_pair(item, at, way, tree.crossings[state]))
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


def _parting(trajectory: Trajectory, tree: StateTree, rules: MistakeRules) -> tuple[int, State] | str:
    """The turn and the state in which the trajectory left the way to success, or why there is none."""
    path = states(trajectory, rules)[:-1]
    at = next((t for t in reversed(range(len(path))) if tree.crossings[path[t]].successes), None)
    if at is None:
        return "no_success_came_by"
    if tree.crossings[path[at]].rates[action_of(trajectory.turns[at])].successes:
        # A success took the same action: this attempt was cut short before it did anything else.
        return "never_part"
    # Invalid replies do not change the state; the first of them is the one to learn from.
    return (path.index(path[at]) if rules.without_effect(trajectory.turns[at]) else at), path[at]


def _parting_pair(item: SourcedTrajectory, at: int, way: tuple[SourcedTrajectory, int], crossing: Crossing) -> Pair:
    other, other_at = way
    turn = other.trajectory.turns[other_at]
    better, worse = crossing.rates[action_of(turn)], crossing.rates[action_of(item.trajectory.turns[at])]
    info: dict[str, JsonValue] = {
        "chosen": {**other.place, "turn": other_at},
        "plays": {"chosen": [better.successes, better.plays], "rejected": [worse.successes, worse.plays]},
    }
    return round_pair(
        item,
        at,
        moved(turn, other.trajectory, other_at, item.trajectory, at),
        reason=PARTING,
        margin=better.mean - worse.mean,
        info=info,
    )


# Success rates of a few plays as Beta posteriors under a uniform prior.


@dataclass(frozen=True)
class Rate:
    """`successes` out of `plays`."""

    successes: int
    plays: int

    @property
    def mean(self) -> float:
        """The expected success rate: (s + 1) / (n + 2)."""
        return (self.successes + 1) / (self.plays + 2)

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.successes + other.successes, self.plays + other.plays)


def probability_better(left: Rate, right: Rate) -> float:
    """The probability that the true rate of `left` is higher than that of `right`.

    Exact for Beta(a, b) = (s + 1, n − s + 1) on both sides:

        P = Σ_{i < a_left} B(a_right + i, b_left + b_right) / ((b_left + i) · B(1 + i, b_left) · B(a_right, b_right))
    """
    a, b = left.successes + 1, left.plays - left.successes + 1
    c, d = right.successes + 1, right.plays - right.successes + 1
    terms = (exp(_log_beta(c + i, b + d) - _log_beta(1 + i, b) - _log_beta(c, d)) / (b + i) for i in range(a))
    return min(1.0, sum(terms))


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


# A journal of the rounds that were tried, so that mining resumes after a kill.
# One line per wave of rounds, written when the wave has ended, in a file next to the output that is removed once the
# output is written. The next start with the same settings, weights and trajectories takes its first waves from the
# journal.

Result = Pair | str


class Journal:
    """The waves of one run of `bough pairs`."""

    def __init__(self, config: PairsConfig, filed: Sequence[SourcedTrajectory]) -> None:
        self.path = config.output.with_name(f".{config.output.name}.looked-into")
        self._key = _key(config, filed)
        self._old = iter(self._read())

    def recall(self, wave: Sequence[Round]) -> tuple[list[Result], dict[str, Any]] | None:
        """The results of the next wave and the cost after it, if the journal has them."""
        line = next(self._old, None)
        if line is None or line["rounds"] != _names(wave):
            self._old = iter(())
            return None
        results = [one if isinstance(one, str) else Pair.model_validate(one) for one in line["results"]]
        return results, line["cost"]

    def add(self, wave: Sequence[Round], results: Sequence[Result], cost: dict[str, Any]) -> None:
        """Writes a wave to disk."""
        shown = [one if isinstance(one, str) else one.model_dump(mode="json") for one in results]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with os.fdopen(open_own(self.path), "ab") as file:
            if fresh:
                file.write(to_json({"key": self._key}) + b"\n")
            file.write(to_json({"rounds": _names(wave), "results": shown, "cost": cost}) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> Iterator[dict[str, Any]]:
        """The complete lines of a journal of this run; a journal of another run is removed."""
        if not self.path.exists():
            return
        with open_file(self.path) as file:
            try:
                is_own, whole = next(_lines(file), {}).get("key") == self._key, file.tell()
                for _ in _lines(file) if is_own else ():
                    whole = file.tell()
            except (ValueError, RecursionError):
                is_own = False
            if not is_own:
                self.remove()
                return
            if whole < file.seek(0, os.SEEK_END):  # killed while a line was written
                with os.fdopen(open_own(self.path), "ab") as own:
                    own.truncate(whole)
            file.seek(0)
            yield from islice(_lines(file), 1, None)


def _lines(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """The complete lines of a journal. ValueError for one that is no JSON object, or longer than any that is."""
    while (line := file.readline(MAX_JSON)).endswith(b"\n"):
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("a line does not hold a JSON object")
        yield found
    if len(line) == MAX_JSON:
        raise ValueError("a line is too long")


def _key(config: PairsConfig, filed: Iterable[SourcedTrajectory]) -> str:
    settings = {name: value for name, value in config.flat_dump().items() if name not in ("output", "overwrite")}
    digest = hashlib.blake2b(to_json(settings), digest_size=16)
    digest.update(to_json(stamp(config.agent.model, config.agent.adapter)))
    for item in filed:
        digest.update(to_json(item.trajectory))
    return digest.hexdigest()


def _names(wave: Sequence[Round]) -> list[list[Any]]:
    return [[one.item.trajectory.id, one.at] for one in wave]
