"""From episodes to batches: episodes become groups, and groups with a training signal fill a batch.

Decides what to train on; every group, call and episode is counted in a ledger.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from bough.chat.template import CallBuilder
from bough.chat.tool_calls import Reply
from bough.config.training import OnlineConfig
from bough.environments.rubric import score
from bough.errors import RowError
from bough.ledger import Ledger, plural
from bough.online.files import EpisodeFiles
from bough.online.player import Job, LostError, Player
from bough.online.schedule import Ages, Outcome, Pace
from bough.policy.policy import Policy
from bough.rollouts.collect import Attempt
from bough.rollouts.rescore import sampled_calls
from bough.training.method import CallSource, GroupExample, Method, count_calls
from bough.types import Call, Group, Task, Trajectory

log = logging.getLogger(__name__)


@dataclass
class _Play:
    """A task that is being played."""

    task: Task
    attempts: list[Attempt]
    finished: dict[str, Trajectory]
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.finished) + len(self.lost) == len(self.attempts)


class OnlineMethod(Method[GroupExample], Protocol):
    """A method that trains on groups of attempts as they are played."""

    def example(self, group: Group, source: CallSource) -> GroupExample:
        """The group as an example. Raises RowError where there is nothing to train on."""
        ...


class Gathered(NamedTuple):
    """A batch: its groups and examples, and its metrics."""

    groups: list[Group]
    examples: list[GroupExample]
    values: dict[str, Any]


class Gatherer:
    """Starts tasks and gathers their results."""

    def __init__(
        self,
        config: OnlineConfig,
        method: OnlineMethod,
        player: Player,
        builder: CallBuilder,
        files: EpisodeFiles,
    ) -> None:
        self.config, self.method, self.player, self.files = config, method, player, files
        rollouts = config.rollouts
        size = config.optimizer.batch_size
        self.pace: Pace = Pace(size, int(size * rollouts.resample), rollouts.max_staleness)
        self.groups, self.calls, self.episodes = Ledger("groups"), Ledger("calls"), Ledger("episodes")
        self.flat = FlatGroups()
        self._builder = builder
        self._plays: dict[int, _Play] = {}
        self._updates = rollouts.updates
        self._num_batches = -(-(config.optimizer.max_steps or 0) // self._updates)
        self._ages = Ages(0, self._updates, rollouts.max_staleness)

    @property
    def ledgers(self) -> list[Ledger]:
        return [self.groups, self.calls, self.episodes]

    def state(self) -> dict[str, Any]:
        """What a run that resumes needs to know besides the metrics."""
        unfinished = {"tasks_unfinished": self.pace.unfinished} if self.pace.unfinished else {}
        return {"ledgers": [ledger.to_json() for ledger in self.ledgers]} | unfinished

    def restore(self, state: dict[str, Any]) -> None:
        """As it was after a batch, by what its file has."""
        for ledger in map(Ledger.from_json, state.get("ledgers", [])):
            setattr(self, ledger.item, ledger)
        self.pace.restore(state["tasks_drawn"], state.get("tasks_unfinished", []))

    def batch(self, number: int) -> Gathered | None:
        """Batch `number`; None if the tasks that were tried give no training signal.

        Raises LostError if more episodes were lost than finished and nothing is left to train on.
        """
        self._ages = Ages(number, self._updates, self.config.rollouts.max_staleness)
        self.pace.ended = [self._judged(one) for one in self.pace.ended]  # by now some calls may be too old
        self.pace.begin(self._num_batches - number - 1)
        while True:
            self._start()
            verdict = self.pace.verdict()
            if verdict != "wait":
                break
            if self._plays:  # else a new draw begins, or all that was started is on file
                self._hear()
        if verdict == "lost":
            tried = self.pace.last_draw
            lost = [f"{id}: {why}" for one in tried for id, why in one.lost.items()]
            raise LostError(sum(one.num_finished for one in tried), lost)
        chosen, used = self.pace.take()
        surplus = self._drop(self.pace.surplus)
        self._count(used)
        self._start()  # what is played ahead while the batch is trained on
        return self._gathered(chosen, used, surplus) if verdict == "complete" else None

    def _gathered(self, chosen: Sequence[Outcome], used: Sequence[Outcome], surplus: int) -> Gathered:
        groups = [one.group for one in chosen if one.group]
        examples = [one.example for one in chosen if one.example]
        values = batch_metrics(groups, [one.played for one in used if one.played], self.player.reward)
        for ledger in (self.groups, self.episodes):
            values |= {f"{ledger.item}_{reason}": count for reason, count in ledger.dropped.items()}
        if surplus:
            values["episodes_surplus"] = surplus
        if stale := self.calls.dropped["stale"]:
            values["calls_stale"] = stale
        calls = [call for example in examples for call in example.calls]
        if self.player.cuts:
            values["calls_off_policy"] = len(calls)
        return Gathered(groups, examples, values | self.player.costs() | self._ages.metrics(calls))

    def _start(self) -> None:
        for number in self.pace.starts(self._num_idle(), self.config.rollouts.group_size):
            task, attempts = self.player.attempts(number)
            ids = {attempt.id for attempt in attempts}
            # With fresh weights nothing older can be used, such as the surplus of a batch before a kill.
            since = 0 if self.config.rollouts.max_staleness else self._ages.batch
            finished = {id: one for id, one in self.files.read(number, since).items() if id in ids}
            play = self._plays[number] = _Play(task, attempts, finished)
            self.player.stream.submit(Job(number, one) for one in attempts if one.id not in finished)
            if play.complete:
                self._end(number)

    def _num_idle(self) -> int:
        """Episodes that could be in flight besides those that were started; 0 where one too many has a price."""
        if not self.player.starts_early:
            return 0
        open_episodes = sum(len(play.attempts) - len(play.finished) - len(play.lost) for play in self._plays.values())
        return self.config.rollouts.concurrency - open_episodes

    def _drop(self, surplus: Sequence[int]) -> int:
        """Cancels tasks that the batch does not need and forgets them; returns how many episodes had begun."""
        if not surplus:
            return 0
        begun = self.player.stream.clear()
        for number in surplus:
            self.files.remove(number)
            if (play := self._plays.pop(number, None)) is not None:
                begun += len(play.finished) + len(play.lost)
            else:  # it had ended
                begun += self.config.rollouts.group_size
        assert not self._plays, "with fresh weights nothing else is in flight"
        return begun

    def _hear(self) -> None:
        """Waits for an episode to end, and hears of all that have ended by then."""
        for result in self.player.stream.results():
            number, id = result.job.number, result.job.attempt.id
            play = self._plays[number]
            if result.episode is not None:
                play.finished[id] = result.episode
            else:
                play.lost[id] = result.error or "unknown error"
            if play.complete:
                self._end(number)

    def _end(self, number: int) -> None:
        """A task is complete: its episodes, in the order of the attempts, are scored and judged."""
        play = self._plays.pop(number)
        records = [play.finished[one.id] for one in play.attempts if one.id in play.finished]
        if self.player.rubric is not None:
            records = self.player.rubric.score_all(records)
        group = Group(task=play.task, attempts=records, info={"number": number}) if records else None
        self.pace.end(self._judged(Outcome(number, group, play.lost)))

    def _judged(self, outcome: Outcome) -> Outcome:
        """The outcome with its example, or with the reason why it gives no training signal."""
        if outcome.played is None:
            return outcome
        group, num_stale = self._ages.fresh(outcome.played)
        of_group, calls = Ledger("calls"), Ledger("calls")
        example, reason, age = None, "", 0
        try:
            example = self.method.example(group, CallSource(self._builder, of_group))
            age = max(map(self._ages.of, example.calls))
            count_calls(calls, of_group, len(example.calls), "no_weight")
        except RowError as error:
            reason = "stale" if num_stale and not of_group.came_in else error.reason
            count_calls(calls, of_group, 0, reason)
        calls.drop("stale", num_stale)
        return replace(outcome, group=group, example=example, reason=reason, age=age, calls=calls)

    def _count(self, used: Sequence[Outcome]) -> None:
        """Adds outcomes that are used up to the ledgers."""
        for one in used:
            self.episodes.keep(one.num_finished)
            if one.lost:
                self.episodes.drop("lost", one.num_lost)
            self.flat.note(one.played, one.reason)
            if one.teaches:
                self.groups.keep()
            else:
                self.groups.drop(one.reason)
            self.calls.keep(one.calls.kept)
            for reason, count in one.calls.dropped.items():
                if count:
                    self.calls.drop(reason, count)
        num_episodes = sum(one.num_finished + one.num_lost for one in used)
        for why, count in Counter(why for one in used for why in one.lost.values()).items():
            log.warning("%d of %s lost: %s", count, plural(num_episodes, "episode is", "episodes are"), why)


# Groups whose attempts all have the same reward: how many there are, of which kind, and what to try.
# GRPO learns nothing from them. What helps depends on the reason: a policy that hardly varies needs other sampling,
# tasks that are too hard or too easy need other tasks or a finer comparison.

# Groups that are counted before a warning, and the share of them that must have taught nothing.
ENOUGH, MOST = 16, 0.5
FlatKind = Literal["same", "failed", "succeeded", "equal"]
ADVICE: dict[FlatKind, str] = {
    "same": "all attempts were the same, word for word (try a higher temperature)",
    "failed": "all attempts failed (try easier tasks, rewards with a part for progress, or a larger group_size)",
    "succeeded": "all attempts succeeded (try harder tasks, advantage state, or rewards for shorter episodes)",
    "equal": "all attempts had the same reward (try rewards with a part for progress, or a larger group_size)",
}


class FlatGroups:
    """Counts groups as they are used, and warns once if most give no training signal."""

    def __init__(self) -> None:
        self.num_groups = 0
        self.kinds: Counter[FlatKind] = Counter()
        self._warned = False

    def note(self, group: Group | None, reason: str) -> None:
        """Counts a group that is used up; `reason` says why it gives no training signal, "" if it does."""
        self.num_groups += 1
        if reason == "zero_variance" and group is not None:
            self.kinds[kind_of(group)] += 1

    def warn(self) -> None:
        """Warns once in a run if most groups give no training signal."""
        if self._warned or self.num_groups < ENOUGH or self.kinds.total() <= MOST * self.num_groups:
            return
        self._warned = True
        log.warning("%d of %d groups have zero variance%s", self.kinds.total(), self.num_groups, self.advice())

    def advice(self) -> str:
        """What to try, as the end of a sentence; nothing where no group was flat."""
        parts = [f"in {count} of them {ADVICE[kind]}" for kind, count in self.kinds.most_common()]
        return f": {'; '.join(parts)}" if parts else ""


def kind_of(group: Group) -> FlatKind:
    """Why the rewards of a group are equal."""
    replies = {tuple((turn.reply.reasoning, Reply.of(turn.reply)) for turn in one.turns) for one in group.attempts}
    if len(replies) == 1:
        return "same"
    outcomes = {attempt.success for attempt in group.attempts}
    if outcomes == {True}:
        return "succeeded"
    return "failed" if outcomes == {False} else "equal"


# Calls whose distance from sampler and start policy is measured in each batch.
CALLS_MEASURED = 8


def batch_metrics(groups: Sequence[Group], played: Sequence[Group], reward: str | None) -> dict[str, Any]:
    """Metrics of the groups of a batch, and of all that were `played` to find them.

    Reward and success are of all: without the tasks that always or never succeed any policy looks middling.
    """
    everyone = [attempt for group in played for attempt in group.attempts]
    members = [attempt for group in groups for attempt in group.attempts]
    turns = [turn for attempt in members for turn in attempt.turns]
    values = {
        "episodes": len(everyone),
        "reward": _mean(score(attempt, reward) for attempt in everyone),
        "success": _mean(attempt.success for attempt in everyone),
        "turns": _mean(len(attempt.turns) for attempt in members),
        "reply_tokens": _mean(len(turn.call.completion_ids) for turn in turns if turn.call),
        "errors": _mean(turn.error is not None for turn in turns),
    }
    for name in sorted({name for attempt in everyone for name in attempt.rewards}):
        values[f"reward/{name}"] = _mean(attempt.rewards.get(name) for attempt in everyone)
    return {name: value for name, value in values.items() if value is not None}


def distances(policy: Policy, groups: Sequence[Group], examples: Sequence[GroupExample]) -> dict[str, float]:
    """Between sampler and trainer, and between the policy and its start, on a few calls.

    What the policy says of them is computed only if the examples do not have it.
    """
    members: list[Trajectory] = [attempt for group in groups for attempt in group.attempts]
    calls = sampled_calls(members, CALLS_MEASURED)
    if not calls:
        return {}
    now = torch.cat(_known(calls, examples) or _logprobs(policy, calls))
    sampled = torch.tensor([value for call in calls for value in call.logprobs or ()])
    found = {"logprob_gap_max": float((now - sampled).abs().max()), "entropy": float(-now.mean())}
    if policy.has_adapter:
        with policy.reference():
            start = torch.cat(_logprobs(policy, calls))
        ratio = start - now
        found["start_kl"] = float((ratio.exp() - ratio - 1).mean())
    return found


def _known(calls: Sequence[Call], examples: Sequence[GroupExample]) -> list[Tensor] | None:
    """The policy's log-probabilities of these calls as the examples have them; None if one is missing."""
    known = {
        _content(call): logprobs
        for example in examples
        for call, logprobs in zip(example.calls, example.old_logprobs, strict=False)  # all of them, or none
    }
    found = [known[content] for call in calls if (content := _content(call)) in known]
    return found if len(found) == len(calls) else None


def _content(call: Call) -> tuple[object, ...]:
    """What its log-probabilities depend on."""
    return tuple(call.prompt_ids), tuple(call.completion_ids)


@torch.no_grad()
def _logprobs(policy: Policy, calls: Sequence[Call]) -> list[Tensor]:
    return [values.cpu() for values in policy.logprobs(calls)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
