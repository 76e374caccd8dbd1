"""A discrete-event simulation of asynchronous online RL on a cluster.

Events are: an engine finishes episodes, an episode is written, the learners finish an
update, weights reach a node, a node fails or is back. An engine's decode step takes longer
with more episodes in it, so an engine has a clock of its own that counts the tokens each
of its episodes got; an episode that starts at count c and has n tokens ends at c + n.

A large cluster is simulated as one of `shrink` times fewer GPUs, groups and nodes whose
shared parts are `shrink` times as busy: the driver's time per episode is multiplied, the
depth of the broadcast is that of the real number of nodes. A simulated node that fails
takes `shrink` nodes with it, `shrink` times as rarely.

The same seed gives the same result: a group's lengths are drawn when it is admitted, in
the order of its number, whenever that happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from benchmarks.scale_admission import Admission, Group, Taken
from benchmarks.scale_engine import Actor, Episode, Loads
from benchmarks.scale_model import Cluster
from benchmarks.scale_outcome import Batch, Outcome

IN_FLIGHT = 2_600  # episodes that are simulated at a time; a cluster with more is shrunk


def simulate(
    cluster: Cluster,
    *,
    batches: int = 8,
    warm_up: int = 3,
    seed: int = 0,
    to_the_end: bool = False,
    in_flight: int = IN_FLIGHT,
) -> Outcome:
    """Runs until `batches` batches after the warm-up are complete.

    They are a part of a longer run, or with `to_the_end` its last ones, for which nothing is
    played ahead any more. A cluster with more than `in_flight` episodes is shrunk.
    """
    shrink = max(1, cluster.in_flight // in_flight)
    return Simulation(cluster, batches, warm_up, seed, to_the_end, shrink).run()


class Simulation:
    """The state of the cluster at `now`, and the events to come."""

    def __init__(self, cluster: Cluster, batches: int, warm_up: int, seed: int, to_the_end: bool, shrink: int) -> None:
        self.cluster, self.num_batches, self.warm_up = cluster, batches + warm_up, warm_up
        self.after = 0 if to_the_end else cluster.max_staleness  # batches after the last that is simulated
        self.shrink = shrink
        self.rng, self.chance = Random(seed), Random(seed + 1)
        self.now, self.version, self._order = 0.0, 0, 0
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        size = max(1, round(cluster.batch_size / self.shrink))
        self.admission = Admission(size, int(size * cluster.resample), cluster.max_staleness)
        self.num_actors = max(1, round(cluster.rollout_gpus / self.shrink))
        self.actors = [Actor(i, cluster.engine, cluster.failures.slowness(i)) for i in range(self.num_actors)]
        self.loads = Loads(self.actors, by_speed=cluster.failures.slow_get_less)
        self.waiting: deque[Episode] = deque()
        self.next_number, self.driver_free = 0, 0.0
        self.training, self.training_id = False, 0
        self.sending = False
        self.unsent: list[tuple[Batch, float]] = []  # trained, and not on its way yet
        self.learner_busy = self.driver_busy = self.learners_back = 0.0
        self.outcome = Outcome(shrink=self.shrink, warm_up=warm_up)
        self._since = 0.0

    def run(self) -> Outcome:
        self._plan_failures()
        self._gather(0)
        while len(self.outcome.batches) < self.num_batches:
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
        number, taken = self.admission.number, self.admission.take()
        self._admit()
        self._train(number, taken)

    def _admit(self) -> None:
        cluster, count = self.cluster, self.admission.room()
        self.admission.start(count)
        for _ in range(count):
            group = Group(self.next_number, cluster.group_size, self.rng.random() < cluster.teach_share)
            self.next_number += 1
            for _ in range(cluster.group_size):
                tokens = cluster.episodes.tokens(self.rng)
                self.waiting.append(Episode(group, tokens, cluster.episodes.waits(self.rng)))
        self.outcome.admitted += count
        self._dispatch()

    def _train(self, number: int, taken: Taken) -> None:
        cluster = self.cluster
        batch = Batch.of(taken, number, cluster.max_staleness, self.now)
        self.outcome.batches.append(batch)
        if len(self.outcome.batches) == self.warm_up:
            self._start_measuring()
        self.training = True
        batch.trained_s = self._update_s([cluster.episodes.tree(fresh) for fresh in batch.fresh])
        seconds = max(0.0, self.learners_back - self.now) + batch.trained_s
        if not cluster.overlap:
            for actor in self.actors:
                self._pause(actor, seconds)
        self.training_id += 1
        self.at(self.now + seconds, self._trained, batch, self.training_id)

    def _update_s(self, trees: list[float]) -> float:
        cluster = self.cluster
        ranks = max(1, round(cluster.learner_gpus / self.shrink))
        compute = cluster.learner.compute_s(trees, ranks) * (ranks * self.shrink / cluster.learner_gpus)
        return cluster.ship_s(sum(trees) * self.shrink) + compute + cluster.sync_s()

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
        for first in range(0, self.num_actors, per_node):
            node = min(first // per_node * self.shrink, self.cluster.rollout_nodes - 1)
            self.at(self.now + self.cluster.arrival_s(node), self._weights, first, self.version)
        for batch, trained in self.unsent:
            batch.everywhere_s = last + self.cluster.load_s - trained
        self.unsent = []
        self.at(last, self._sent)

    def _sent(self) -> None:
        self.sending = False
        self._broadcast()

    def _weights(self, first: int, version: int) -> None:
        for actor in self.actors[first : first + self.cluster.gpus_per_node]:
            if actor.alive and version > actor.version:  # a node that was away may have a newer one
                self._pause(actor, self.cluster.load_s)
                actor.swap(self.now, version)
                self.loads.put(actor)
        self._dispatch()

    # Episodes

    def _dispatch(self) -> None:
        """Gives waiting episodes to the least loaded engines whose weights are new enough."""
        in_bound = self.admission.earliest - self.cluster.max_staleness
        oldest = self.version if self.cluster.wait_for_newest else in_bound
        touched = {}
        while self.waiting:
            actor = self.loads.least(oldest)
            if actor is None:
                break
            actor.start(self.waiting.popleft(), self.now)
            self.loads.put(actor)
            touched[actor.id] = actor
        for actor in touched.values():
            self._plan(actor)

    def _plan(self, actor: Actor) -> None:
        actor.plan += 1
        end = actor.next_end(self.now)
        if end is not None:
            self.at(end, self._decoded, actor, actor.plan)

    def _pause(self, actor: Actor, seconds: float) -> None:
        if seconds and actor.alive:
            actor.pause(self.now, seconds)
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
        """The episode leaves its slot and goes to the driver, which writes one after the other."""
        actor.free(episode)
        self._note_versions(actor, episode)
        spacing = self.cluster.driver.spacing_s * self.shrink
        self.driver_free = max(self.driver_free, self.now + self.cluster.driver.call_s) + spacing
        self.driver_busy += spacing
        self.at(self.driver_free, self._written, episode)
        self.loads.put(actor)
        self._dispatch()

    def _note_versions(self, actor: Actor, episode: Episode) -> None:
        """Tokens by the version that sampled them: an episode's are spread evenly over its time."""
        tokens = episode.group.tokens
        if not self.cluster.swap_mid_episode:
            tokens[episode.version] = tokens.get(episode.version, 0.0) + episode.tokens
            return
        for version, share in actor.versions_between(episode.began, self.now):
            tokens[version] = tokens.get(version, 0.0) + share * episode.tokens

    def _written(self, episode: Episode) -> None:
        self.outcome.episodes += 1
        episode.group.open -= 1
        if not episode.group.open:
            self.admission.end(episode.group)
            self._progress()

    # Failures

    def _plan_failures(self) -> None:
        mtbf = self.cluster.failures.node_mtbf_s
        if not mtbf:
            return
        for first in range(0, self.num_actors, self.cluster.gpus_per_node):
            self.at(self.chance.expovariate(1 / mtbf), self._fail, first)
        self.at(self.chance.expovariate(self.cluster.learner_nodes / mtbf), self._fail_learner)

    def _fail(self, first: int) -> None:
        """What was in flight on the node is played again, before anything else."""
        failures = self.cluster.failures
        for actor in self.actors[first : first + self.cluster.gpus_per_node]:
            for episode in actor.die(self.now):
                episode.plays += 1
                self.outcome.replayed += 1
                self.waiting.appendleft(episode)
            actor.plan += 1
        self.at(self.now + failures.restart_s, self._back, first)
        self.at(self.now + failures.restart_s + self.chance.expovariate(1 / failures.node_mtbf_s), self._fail, first)
        self._dispatch()

    def _back(self, first: int) -> None:
        """The node gets the newest weights from its neighbour."""
        for actor in self.actors[first : first + self.cluster.gpus_per_node]:
            actor.live(self.now)
        fetch = 0.0 if self.cluster.local else self.cluster.weights / self.cluster.network.bandwidth
        self.at(self.now + fetch, self._weights, first, self.version)

    def _fail_learner(self) -> None:
        """All learners start again from the last checkpoint: the update in progress is lost."""
        failures = self.cluster.failures
        rate = self.cluster.learner_nodes / failures.node_mtbf_s
        self.learners_back = self.now + failures.restart_s
        self.at(self.learners_back + self.chance.expovariate(rate), self._fail_learner)
        if self.training:
            self.training_id += 1
            batch = self.outcome.batches[-1]
            self.at(self.learners_back + batch.trained_s, self._trained, batch, self.training_id)

    # Measuring

    def _start_measuring(self) -> None:
        for actor in self.actors:
            actor.advance(self.now)
            actor.busy_s = actor.tokens = 0.0
        self.learner_busy = self.driver_busy = 0.0
        self.outcome.episodes = 0
        self._since = self.now

    def _measured(self) -> Outcome:
        outcome = self.outcome
        outcome.seconds = self.now - self._since
        for actor in self.actors:
            actor.advance(self.now)
        busy = sum(actor.busy_s for actor in self.actors)
        at_best = sum(self.cluster.engine.tokens_per_s / actor.slowness for actor in self.actors)
        outcome.rollout_use = sum(actor.tokens for actor in self.actors) / (outcome.seconds * at_best)
        outcome.rollout_idle = 1 - busy / (outcome.seconds * self.num_actors)
        outcome.learner_idle = max(0.0, 1 - self.learner_busy / outcome.seconds)
        outcome.driver_busy = min(1.0, self.driver_busy / outcome.seconds)
        outcome.open_groups, outcome.ended_groups = self.admission.num_open, self.admission.num_ended
        return outcome
