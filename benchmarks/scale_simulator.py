"""A discrete-event simulation of asynchronous online RL on a cluster, for `scale.py`.

Events are: an engine finishes episodes, an episode is written, the learners finish an update, weights
reach a node, a node fails or is back. An engine's decode step takes longer with more episodes in it, so
an engine has a clock of its own that counts the tokens each of its episodes got; an episode that starts at
count c and has n tokens ends at c + n.

A large cluster is simulated as one of `shrink` times fewer GPUs, groups and nodes whose shared parts are
`shrink` times as busy: the driver's time per episode is multiplied, the depth of the broadcast is that of
the real number of nodes. A simulated node that fails takes `shrink` nodes with it, `shrink` times as rarely.

The same seed gives the same result: a group's lengths are drawn when it is admitted, in the order of its number.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from random import Random

from bough.online.schedule import DRAWS

IN_FLIGHT = 2_600  # episodes that are simulated at a time; a cluster with more is shrunk
NO_WEIGHTS = -(10**9)


@dataclass(frozen=True)
class Cluster:
    """A run of online RL. Times are seconds, sizes bytes, lengths tokens, bandwidths bytes per second."""

    rollout_gpus: int
    learner_gpus: int
    batch_size: int  # groups
    group_size: int
    max_staleness: int
    # An engine: a decode step takes `step_s`, and `slot_s` more for each episode in it.
    step_s: float
    slot_s: float
    slots: int
    # Episodes: log-normal lengths with sigma `tail`, at most `longest` times the mean; log-normal waits per turn.
    mean_tokens: float
    tail: float = 0.0
    longest: float = 8.0
    turns: int = 10
    read_per_turn: float = 0.0  # tokens of observations and of the template
    prompt_tokens: float = 0.0  # shared by the attempts at a task
    wait_s: float = 0.0
    wait_tail: float = 0.0
    teach_share: float = 1.0  # of the groups
    resample: float = 2.0
    # The driver takes finished episodes one at a time; with several writers the workers write, and it is told.
    writer_s: float = 0.0
    call_s: float = 0.0  # latency of a remote call
    writers: int = 1
    notice_s: float = 0.0
    bytes_per_token: float = 16.0  # of what learners get
    # Learners.
    learner_tokens_per_s: float = math.inf
    update_s: float = 0.0  # of an update besides its tokens
    # Weights, and the network that they go through.
    weights: float = 0.0
    bandwidth: float = 1e9
    learner_bandwidth: float = 1e9
    latency_s: float = 0.0
    chunk: float = 5 * 2**20
    fan_out: int = 2  # nodes that a node forwards weights to; 0: the learner's node serves all of them
    load_bandwidth: float = math.inf  # from a node's memory into an engine
    swap_mid_episode: bool = True
    wait_for_newest: bool = False  # else an episode may begin with any weights within the bound
    overlap: bool = True  # rollouts continue while the learners train
    local: bool = False  # learners and engines share one node: nothing is sent
    gpus_per_node: int = 8
    # Failures: a node fails once per `node_mtbf_s` on average (0: never) and is back after `restart_s`.
    node_mtbf_s: float = 0.0
    restart_s: float = 0.0
    slow_share: float = 0.0  # of the rollout GPUs
    slowdown: float = 1.0
    slow_get_less: bool = True  # the driver weighs an engine's load by its speed

    @property
    def in_flight(self) -> int:
        """The most episodes that can be in flight."""
        admitted = self.batch_size * self.group_size * (1 + self.max_staleness)
        return min(admitted, self.rollout_gpus * self.slots)

    @property
    def rollout_nodes(self) -> int:
        return math.ceil(self.rollout_gpus / self.gpus_per_node)

    @property
    def learner_nodes(self) -> int:
        return math.ceil(self.learner_gpus / self.gpus_per_node)

    @property
    def tokens_per_s(self) -> float:
        """Of an engine at full concurrency."""
        return self.slots / (self.step_s + self.slot_s * self.slots)

    @property
    def spacing_s(self) -> float:
        """Seconds between two episodes that the driver takes at full speed."""
        return max(self.writer_s / self.writers, self.notice_s if self.writers > 1 else 0.0)

    @property
    def load_s(self) -> float:
        """An engine stands still while it takes new weights."""
        return self.weights / self.load_bandwidth

    def slowness(self, number: int) -> float:
        """Of an engine; the slow ones are spread evenly over the numbers."""
        is_slow = int((number + 1) * self.slow_share) > int(number * self.slow_share)
        return self.slowdown if is_slow else 1.0

    def tree(self, sampled: float) -> float:
        """Tokens of the tree of a group with `sampled` tokens in all."""
        return self.prompt_tokens + sampled * (1 + self.read_per_turn * self.turns / self.mean_tokens)

    def arrival_s(self, node: int) -> float:
        """Seconds after the start of a broadcast until `node` has all of it; nodes count from 0.

        A node forwards each chunk as it comes in, and its link is shared by the nodes that it forwards to.
        """
        if self.local:
            return 0.0
        if not self.fan_out:
            return self.latency_s + self.weights * self.rollout_nodes / self.bandwidth
        fan_out = min(self.fan_out, self.rollout_nodes)
        depth, reached = 1, fan_out
        while reached <= node:
            depth += 1
            reached += fan_out**depth
        per_level = self.latency_s + fan_out * min(self.chunk, self.weights) / self.bandwidth
        return fan_out * self.weights / self.bandwidth + (depth - 1) * per_level + self.latency_s

    def trained_s(self, trees: Sequence[float], shrink: int) -> float:
        """An update: the batch leaves the driver's node, the slowest rank computes, gradients are all-reduced.

        Trees are dealt out by tokens, the largest first. The ring is over nodes, whose GPUs are joined inside.
        """
        shipped = 0.0 if self.local else sum(trees) * shrink * self.bytes_per_token / self.bandwidth
        ranks = max(1, round(self.learner_gpus / shrink))
        loads = [0.0] * ranks
        heapify(loads)
        for tokens in sorted(trees, reverse=True):
            heapreplace(loads, loads[0] + tokens)
        computed = self.update_s + max(loads) / self.learner_tokens_per_s
        nodes, joined = self.learner_nodes, 0.0
        if nodes > 1:
            hops = 2 * math.ceil(math.log2(nodes)) * self.latency_s
            joined = 2 * self.weights * ((nodes - 1) / nodes) / self.learner_bandwidth + hops
        return shipped + computed * (ranks * shrink / self.learner_gpus) + joined


@dataclass(eq=False)
class Group:
    """The attempts at one task: how many are open, and how many tokens each version of the weights sampled."""

    number: int
    open: int
    teaches: bool  # its rewards differ
    tokens: dict[int, float] = field(default_factory=dict)

    def ages(self, batch: int, max_staleness: int) -> dict[int, float]:
        """Tokens that batch `batch` may learn from, by their age."""
        return {batch - of: count for of, count in self.tokens.items() if batch - of <= max_staleness}


class Episode:
    """An attempt. Where environments take no time (no `waits`), its turns are one long turn."""

    __slots__ = ("began", "group", "plays", "tokens", "turn", "version", "waits")

    def __init__(self, group: Group, tokens: float, waits: list[float]) -> None:
        self.group, self.tokens, self.waits = group, tokens, waits
        self.began, self.version, self.plays, self.turn = 0.0, 0, 0, 0


class Actor:
    """An engine with its weights. `count` is the number of tokens that an episode got that was there from the start.

    `held` are the episodes in its slots, `ends` those of them that decode, by the count at which they end; the
    others wait for their environments.
    """

    def __init__(self, id: int, cluster: Cluster) -> None:
        self.id, self.cluster, self.slowness = id, cluster, cluster.slowness(id)
        self.held: dict[Episode, None] = {}  # in the order of their starts
        self.ends: list[tuple[float, int, Episode]] = []
        self.count, self.time, self.busy_s, self.tokens = 0.0, 0.0, 0.0, 0.0
        self.plan, self.alive, self.version, self._order = 0, True, 0, 0
        self._swaps: tuple[list[float], list[int]] = ([-1.0], [0])

    def step(self) -> float:
        """Seconds of a decode step, in which each running episode gets one token."""
        return (self.cluster.step_s + self.cluster.slot_s * len(self.ends)) * self.slowness

    def advance(self, now: float) -> None:
        """Brings the count up to `now`. A pause has moved `time` ahead of it."""
        if now <= self.time:
            return
        if self.ends:
            steps = (now - self.time) / self.step()
            self.count += steps
            self.tokens += steps * len(self.ends)
            self.busy_s += now - self.time
        self.time = now

    def start(self, episode: Episode, now: float) -> None:
        episode.began, episode.version, episode.turn = now, self.version, 0
        self.held[episode] = None
        self.answer(episode, now)

    def answer(self, episode: Episode, now: float) -> None:
        """The next turn of an episode in its slots."""
        self.advance(now)
        self._order += 1
        heappush(self.ends, (self.count + episode.tokens / (len(episode.waits) or 1), self._order, episode))

    def pop_ended(self, now: float) -> Iterator[Episode]:
        self.advance(now)
        # The first one is due; rounding must not make it wait for another event.
        limit = max(self.count, self.ends[0][0]) + 1e-9
        self.count = max(self.count, self.ends[0][0])
        while self.ends and self.ends[0][0] <= limit:
            yield heappop(self.ends)[2]

    def swap(self, now: float, version: int) -> None:
        self.version = version
        self._swaps[0].append(now)
        self._swaps[1].append(version)

    def versions_between(self, began: float, ended: float) -> Iterator[tuple[int, float]]:
        """The versions that it sampled from between two times, with their shares of that time."""
        times, versions = self._swaps
        first = bisect_right(times, began) - 1
        if ended <= began or first == len(times) - 1:
            yield versions[first], 1.0
            return
        for i in range(first, len(times)):
            until = min(ended, times[i + 1]) if i + 1 < len(times) else ended
            if until > times[i]:
                yield versions[i], (until - max(began, times[i])) / (ended - began)
            if until == ended:
                return


class Admission:
    """Which groups start when, and which of them batch `number` takes: as `bough.online.schedule.Pace`, with counts.

    `num_open` groups are in flight; of the others some are `ready`, some teach nothing, some are too old.
    """

    def __init__(self, size: int, budget: int, max_staleness: int) -> None:
        self.size, self.budget, self.max_staleness = size, budget, max_staleness
        self.number, self.earliest, self.num_open, self.draws, self.lead = 0, 0, 0, 1, max_staleness
        self.ready, self.flat, self.stale = list[Group](), list[Group](), list[Group]()

    @property
    def num_ended(self) -> int:
        return len(self.ready) + len(self.flat) + len(self.stale)

    def begin(self, number: int, num_later: int) -> None:
        """The next batch is wanted, and the run has `num_later` after it; some groups may be too old by now."""
        self.number, self.earliest, self.draws, self.lead = number, number, 1, min(self.max_staleness, num_later)
        waiting, self.ready = self.ready, []
        for group in waiting:
            self.file(group)

    def room(self) -> int:
        """How many groups to start now."""
        ahead, tried = self.lead * self.size, self.num_ended + self.num_open
        room = min(self.size + ahead - len(self.ready) - self.num_open, self.draws * self.budget + ahead - tried)
        if not self.num_ended:
            room = min(room, max(2, self.size) + ahead - tried)
        return max(0, room)

    def file(self, group: Group) -> None:
        """A group that has ended, or is older now."""
        if not group.teaches:
            self.flat.append(group)
        elif sum(group.ages(self.number, self.max_staleness).values()):
            self.ready.append(group)
        else:
            self.stale.append(group)

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

    def take(self, now: float) -> Batch:
        """The oldest groups first; those beyond the batch stay for the next one."""
        age = {group.number: max(group.ages(self.number, self.max_staleness)) for group in self.ready}
        self.ready.sort(key=lambda group: (-age[group.number], group.number))
        chosen, stale = self.ready[: self.size], self.stale
        self.ready, self.flat, self.stale = self.ready[self.size :], [], []
        self.lead -= 1
        self.earliest += 1
        ages: dict[int, float] = {}
        for group in (*chosen, *stale):
            for old, count in group.ages(self.number, self.max_staleness).items():
                ages[old] = ages.get(old, 0.0) + count
        fresh = [sum(group.ages(self.number, self.max_staleness).values()) for group in chosen]
        every = sum(sum(group.tokens.values()) for group in (*chosen, *stale))
        return Batch(now, ages, fresh, every - sum(fresh))


@dataclass
class Batch:
    """What one batch took, and when it was complete."""

    at_s: float
    ages: dict[int, float]  # tokens by age
    fresh: list[float]  # tokens that are learnt from, by group
    stale_tokens: float
    trained_s: float = 0.0
    everywhere_s: float = 0.0  # from the end of the update until all engines could have the new weights


class Simulation:
    """The state of the cluster at `now`, and the events to come."""

    def __init__(self, cluster: Cluster, batches: int, warm_up: int, seed: int, to_the_end: bool, shrink: int) -> None:
        self.cluster, self.num_batches, self.warm_up, self.shrink = cluster, batches + warm_up, warm_up, shrink
        self.after = 0 if to_the_end else cluster.max_staleness  # batches after the last that is simulated
        self.rng, self.chance = Random(seed), Random(seed + 1)
        self.now, self.version, self._order = 0.0, 0, 0
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        size = max(1, round(cluster.batch_size / shrink))
        self.admission = Admission(size, int(size * cluster.resample), cluster.max_staleness)
        self.actors = [Actor(i, cluster) for i in range(max(1, round(cluster.rollout_gpus / shrink)))]
        self.waiting: deque[Episode] = deque()
        self.next_number, self.driver_free = 0, 0.0
        self.training, self.training_id, self.sending = False, 0, False
        self.unsent: list[tuple[Batch, float]] = []  # trained, and not on its way yet
        self.learner_busy = self.driver_busy = self.learners_back = self.since = 0.0
        self.batches, self.episodes, self.replayed = list[Batch](), 0, 0

    def run(self) -> dict[str, float]:
        self._plan_failures()
        self._gather(0)
        while len(self.batches) < self.num_batches:
            self.now, _, act, args = heappop(self.events)
            act(*args)
        return self._measured()

    def at(self, time: float, act: Callable[..., None], *args: object) -> None:
        self._order += 1
        heappush(self.events, (time, self._order, act, args))

    # Batches

    def _gather(self, number: int) -> None:
        self.training = False
        self.admission.begin(number, self.num_batches + self.after - number - 1)
        self._progress()

    def _progress(self) -> None:
        """Starts what there is room for; trains if the batch is complete."""
        if self.training:
            return
        self._admit()
        while not self.admission.complete():
            if not self.admission.room():
                return
            self._admit()  # another draw
        batch = self.admission.take(self.now)
        self._admit()
        self._train(batch)

    def _admit(self) -> None:
        cluster, count = self.cluster, self.admission.room()
        self.admission.num_open += count
        for _ in range(count):
            group = Group(self.next_number, cluster.group_size, self.rng.random() < cluster.teach_share)
            self.next_number += 1
            for _ in range(cluster.group_size):
                tokens = cluster.mean_tokens * min(cluster.longest, self._about_one(cluster.tail))
                turns = range(cluster.turns if cluster.wait_s else 0)
                waits = [cluster.wait_s * self._about_one(cluster.wait_tail) for _ in turns]
                self.waiting.append(Episode(group, tokens, waits))
        self._dispatch()

    def _about_one(self, sigma: float) -> float:
        """A log-normal number with mean 1."""
        return self.rng.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0

    def _train(self, batch: Batch) -> None:
        self.batches.append(batch)
        if len(self.batches) == self.warm_up:
            self._start_measuring()
        self.training = True
        batch.trained_s = self.cluster.trained_s([self.cluster.tree(fresh) for fresh in batch.fresh], self.shrink)
        seconds = max(0.0, self.learners_back - self.now) + batch.trained_s
        if not self.cluster.overlap:
            for actor in self.actors:
                self._pause(actor, seconds)
        self.training_id += 1
        self.at(self.now + seconds, self._trained, batch, self.training_id)

    def _trained(self, batch: Batch, training_id: int) -> None:
        if training_id != self.training_id:
            return  # a learner failed during this update
        self.learner_busy += batch.trained_s
        self.version += 1
        self.unsent.append((batch, self.now))
        self._broadcast()
        self._gather(self.admission.number + 1)

    def _broadcast(self) -> None:
        """One broadcast at a time; the newest version follows, those between are never sent."""
        if self.sending or not self.unsent:
            return
        self.sending, last = True, self.now + self.cluster.arrival_s(self.cluster.rollout_nodes - 1)
        per_node = self.cluster.gpus_per_node
        for first in range(0, len(self.actors), per_node):
            node = min(first // per_node * self.shrink, self.cluster.rollout_nodes - 1)
            self.at(self.now + self.cluster.arrival_s(node), self._weights, first, self.version)
        for batch, trained in self.unsent:
            batch.everywhere_s = last + self.cluster.load_s - trained
        self.unsent = []
        self.at(last, self._sent)

    def _sent(self) -> None:
        self.sending = False
        self._broadcast()

    def _node(self, first: int) -> list[Actor]:
        return self.actors[first : first + self.cluster.gpus_per_node]

    def _weights(self, first: int, version: int) -> None:
        for actor in self._node(first):
            if actor.alive and version > actor.version:  # a node that was away may have a newer one
                self._pause(actor, self.cluster.load_s)
                actor.swap(self.now, version)
        self._dispatch()

    # Episodes

    def _dispatch(self) -> None:
        """Gives waiting episodes to the least loaded engines whose weights are new enough."""
        cluster, touched = self.cluster, dict[int, Actor]()
        oldest = self.version if cluster.wait_for_newest else self.admission.earliest - cluster.max_staleness
        usable = [
            (len(actor.held) * (actor.slowness if cluster.slow_get_less else 1.0), actor.id)
            for actor in (self.actors if self.waiting else ())
            if actor.alive and actor.version >= oldest and len(actor.held) < cluster.slots
        ]
        heapify(usable)
        while self.waiting and usable:
            actor = touched[usable[0][1]] = self.actors[usable[0][1]]
            actor.start(self.waiting.popleft(), self.now)
            if len(actor.held) < cluster.slots:
                load = len(actor.held) * (actor.slowness if cluster.slow_get_less else 1.0)
                heapreplace(usable, (load, actor.id))
            else:
                heappop(usable)
        for actor in touched.values():
            self._plan(actor)

    def _plan(self, actor: Actor) -> None:
        actor.plan += 1
        if actor.ends:
            actor.advance(self.now)
            end = actor.time + max(0.0, actor.ends[0][0] - actor.count) * actor.step()
            self.at(end, self._decoded, actor, actor.plan)

    def _pause(self, actor: Actor, seconds: float) -> None:
        if seconds and actor.alive:
            actor.advance(self.now)
            actor.time = max(actor.time, self.now) + seconds
            self._plan(actor)

    def _decoded(self, actor: Actor, plan: int) -> None:
        if plan != actor.plan:
            return  # something has changed since
        for episode in actor.pop_ended(self.now):
            if episode.waits:
                self.at(self.now + episode.waits[episode.turn], self._stepped, actor, episode, episode.plays)
            else:
                self._ended(actor, episode)
        self._plan(actor)

    def _stepped(self, actor: Actor, episode: Episode, play: int) -> None:
        """The environment has answered."""
        if play != episode.plays:
            return  # its node failed meanwhile
        episode.turn += 1
        if episode.turn == len(episode.waits):
            self._ended(actor, episode)
        else:
            actor.answer(episode, self.now)
            self._plan(actor)

    def _ended(self, actor: Actor, episode: Episode) -> None:
        """The episode leaves its slot and goes to the driver, which writes one after the other.

        Its tokens are spread evenly over its time, and so over the versions that sampled them.
        """
        del actor.held[episode]
        spread = actor.versions_between(episode.began, self.now)
        tokens = episode.group.tokens
        for version, share in spread if self.cluster.swap_mid_episode else [(episode.version, 1.0)]:
            tokens[version] = tokens.get(version, 0.0) + share * episode.tokens
        spacing = self.cluster.spacing_s * self.shrink
        self.driver_free = max(self.driver_free, self.now + self.cluster.call_s) + spacing
        self.driver_busy += spacing
        self.at(self.driver_free, self._written, episode)
        self._dispatch()

    def _written(self, episode: Episode) -> None:
        self.episodes += 1
        episode.group.open -= 1
        if not episode.group.open:
            self.admission.num_open -= 1
            self.admission.file(episode.group)
            self._progress()

    # Failures

    def _plan_failures(self) -> None:
        if mtbf := self.cluster.node_mtbf_s:
            for first in range(0, len(self.actors), self.cluster.gpus_per_node):
                self.at(self.chance.expovariate(1 / mtbf), self._fail, first)
            self.at(self.chance.expovariate(self.cluster.learner_nodes / mtbf), self._fail_learner)

    def _fail(self, first: int) -> None:
        """What was in flight on the node is played again, before anything else."""
        for actor in self._node(first):
            actor.advance(self.now)
            for episode in actor.held:
                episode.plays += 1
                self.replayed += 1
                self.waiting.appendleft(episode)
            actor.held, actor.ends, actor.alive = {}, [], False
            actor.plan += 1
        back = self.now + self.cluster.restart_s
        self.at(back, self._back, first)
        self.at(back + self.chance.expovariate(1 / self.cluster.node_mtbf_s), self._fail, first)
        self._dispatch()

    def _back(self, first: int) -> None:
        """The node gets the newest weights from its neighbour."""
        for actor in self._node(first):
            actor.alive, actor.time, actor.version = True, self.now, NO_WEIGHTS
        fetch = 0.0 if self.cluster.local else self.cluster.weights / self.cluster.bandwidth
        self.at(self.now + fetch, self._weights, first, self.version)

    def _fail_learner(self) -> None:
        """All learners start again from the last checkpoint: the update in progress is lost."""
        self.learners_back = self.now + self.cluster.restart_s
        rate = self.cluster.learner_nodes / self.cluster.node_mtbf_s
        self.at(self.learners_back + self.chance.expovariate(rate), self._fail_learner)
        if self.training:
            self.training_id += 1
            batch = self.batches[-1]
            self.at(self.learners_back + batch.trained_s, self._trained, batch, self.training_id)

    # Measuring

    def _start_measuring(self) -> None:
        for actor in self.actors:
            actor.advance(self.now)
            actor.busy_s = actor.tokens = 0.0
        self.learner_busy = self.driver_busy = 0.0
        self.episodes, self.since = 0, self.now

    def _measured(self) -> dict[str, float]:
        """The numbers of the batches after the warm-up."""
        seconds, batches = self.now - self.since, self.batches[self.warm_up :]
        for actor in self.actors:
            actor.advance(self.now)
        learnt = sum(sum(batch.ages.values()) for batch in batches)
        stale = sum(batch.stale_tokens for batch in batches)
        at_best = sum(self.cluster.tokens_per_s / actor.slowness for actor in self.actors)
        return {
            "episodes_per_s": self.episodes * self.shrink / seconds,
            "learnt_per_s": learnt * self.shrink / seconds,
            # Mean age of the tokens that are learnt from, in batches.
            "staleness": sum(age * tokens for batch in batches for age, tokens in batch.ages.items()) / learnt,
            # Tokens that were dropped as too old, of those of groups that teach something.
            "stale_share": stale / (learnt + stale),
            "rollout_idle": 1 - sum(actor.busy_s for actor in self.actors) / (seconds * len(self.actors)),
            "rollout_use": sum(actor.tokens for actor in self.actors) / (seconds * at_best),
            "learner_idle": max(0.0, 1 - self.learner_busy / seconds),
            "driver_busy": min(1.0, self.driver_busy / seconds),
            "weights_everywhere_s": sum(batch.everywhere_s for batch in batches[:-1]) / max(1, len(batches) - 1),
            "seconds_per_batch": seconds / len(batches),
            "update_s": batches[-1].trained_s,
            "replayed_share": self.replayed / self.episodes,
        }


def simulate(
    cluster: Cluster, *, batches: int = 8, warm_up: int = 3, seed: int = 0, to_the_end: bool = False,
    in_flight: int = IN_FLIGHT,
) -> dict[str, float]:  # fmt: skip
    """Runs until `batches` batches after the warm-up are complete.

    They are a part of a longer run, or with `to_the_end` its last ones, for which nothing is played ahead any
    more. A cluster with more than `in_flight` episodes is shrunk.
    """
    return Simulation(cluster, batches, warm_up, seed, to_the_end, shrink_of(cluster, in_flight)).run()


def shrink_of(cluster: Cluster, in_flight: int) -> int:
    return max(1, cluster.in_flight // in_flight)
