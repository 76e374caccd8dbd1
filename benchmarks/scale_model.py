"""What a cluster is made of, for the simulator in `scale_simulator.py`: engines, learners, network, driver, failures.

Each part says in closed form what one operation of it takes. Times are seconds, sizes
bytes, lengths tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from random import Random


@dataclass(frozen=True)
class Engine:
    """Samples for one rollout GPU: a decode step takes `step_s`, and `slot_s` more for each episode in it."""

    step_s: float
    slot_s: float
    slots: int

    def step(self, running: int) -> float:
        """Seconds of a decode step, in which each running episode gets one token."""
        return self.step_s + self.slot_s * running

    @property
    def tokens_per_s(self) -> float:
        """At full concurrency."""
        return self.slots / self.step(self.slots)


@dataclass(frozen=True)
class Episodes:
    """How long episodes are: log-normal numbers of sampled tokens, and log-normal waits for the environment.

    `tail` is the log-normal's sigma (0: all are equally long); no episode has more than
    `longest` times the mean. `wait_tail` is that of each of the `turns` waits.
    """

    mean_tokens: float
    tail: float = 0.0
    longest: float = 8.0
    turns: int = 10
    read_per_turn: float = 0.0  # tokens of observations and of the template
    prompt_tokens: float = 0.0  # shared by the attempts at a task
    wait_s: float = 0.0
    wait_tail: float = 0.0

    def tokens(self, rng: Random) -> float:
        return self.mean_tokens * min(self.longest, _about_one(rng, self.tail))

    def waits(self, rng: Random) -> list[float]:
        """Seconds that an episode waits for its environment after each turn; empty if it never does."""
        return [self.wait_s * _about_one(rng, self.wait_tail) for _ in range(self.turns)] if self.wait_s else []

    @property
    def read_per_token(self) -> float:
        """Tokens that a learner computes per sampled token, without the prompt."""
        return 1 + self.read_per_turn * self.turns / self.mean_tokens

    def tree(self, sampled: float) -> float:
        """Tokens of the tree of a group with `sampled` tokens in all."""
        return self.prompt_tokens + sampled * self.read_per_token


@dataclass(frozen=True)
class Network:
    """`bandwidth` of a node's link for objects and `learner_bandwidth` for gradients, in bytes per second."""

    bandwidth: float
    learner_bandwidth: float
    latency_s: float
    chunk: float = 5 * 2**20
    fan_out: int = 2  # nodes that a node forwards weights to; 0: the learner's node serves all of them

    def arrival_s(self, size: float, node: int, num_nodes: int) -> float:
        """Seconds after the start of a broadcast until `node` has all of it; nodes count from 0.

        A node forwards each chunk as it comes in, and its link is shared by the nodes that
        it forwards to.
        """
        if not self.fan_out:
            return self.latency_s + size * num_nodes / self.bandwidth
        fan_out = min(self.fan_out, num_nodes)
        depth, reached = 1, fan_out
        while reached <= node:
            depth += 1
            reached += fan_out**depth
        per_level = self.latency_s + fan_out * min(self.chunk, size) / self.bandwidth
        return fan_out * size / self.bandwidth + (depth - 1) * per_level + self.latency_s

    def all_reduce_s(self, size: float, num_nodes: int) -> float:
        """A ring over nodes, whose GPUs are joined inside the node first."""
        if num_nodes < 2:
            return 0.0
        share = (num_nodes - 1) / num_nodes
        return 2 * size * share / self.learner_bandwidth + 2 * math.ceil(math.log2(num_nodes)) * self.latency_s


@dataclass(frozen=True)
class Driver:
    """Takes finished episodes, one at a time.

    With one writer that is the driver itself, which spends `writer_s` on an episode. With
    several, the workers write, and the driver spends `notice_s`.
    """

    writer_s: float
    call_s: float  # latency of a remote call
    writers: int = 1
    notice_s: float = 0.0
    bytes_per_token: float = 16.0  # of what learners get

    @property
    def spacing_s(self) -> float:
        """Seconds between two episodes at full speed."""
        return max(self.writer_s / self.writers, self.notice_s if self.writers > 1 else 0.0)


@dataclass(frozen=True)
class Learners:
    """Train `tokens_per_s` each; `update_s` is what an update takes besides."""

    tokens_per_s: float
    update_s: float = 0.0

    def compute_s(self, trees: Sequence[float], num: int) -> float:
        """The slowest rank's time: trees are dealt out by tokens, the largest first."""
        loads = [0.0] * num
        heapify(loads)
        for tokens in sorted(trees, reverse=True):
            heapreplace(loads, loads[0] + tokens)
        return self.update_s + max(loads) / self.tokens_per_s


@dataclass(frozen=True)
class Failures:
    """A node fails once per `node_mtbf_s` on average (0: never) and is back after `restart_s`."""

    node_mtbf_s: float = 0.0
    restart_s: float = 0.0
    slow_share: float = 0.0  # of the rollout GPUs
    slowdown: float = 1.0
    slow_get_less: bool = True  # the driver weighs an engine's load by its speed

    def slowness(self, number: int) -> float:
        """Of an engine; the slow ones are spread evenly over the numbers."""
        is_slow = int((number + 1) * self.slow_share) > int(number * self.slow_share)
        return self.slowdown if is_slow else 1.0


@dataclass(frozen=True)
class Cluster:
    """A run of online RL: the cluster, what is played on it, and how batches are formed."""

    engine: Engine
    episodes: Episodes
    network: Network
    driver: Driver
    learner: Learners
    rollout_gpus: int
    learner_gpus: int
    batch_size: int  # groups
    group_size: int
    max_staleness: int
    weights: float  # bytes
    failures: Failures = field(default_factory=Failures)
    gpus_per_node: int = 8
    teach_share: float = 1.0  # of the groups
    resample: float = 2.0
    load_bandwidth: float = math.inf  # from a node's memory into an engine
    swap_mid_episode: bool = True
    wait_for_newest: bool = False  # else an episode may begin with any weights within the bound
    overlap: bool = True  # rollouts continue while the learners train
    local: bool = False  # learners and engines share one node: nothing is sent

    @property
    def gpus(self) -> int:
        return self.rollout_gpus + self.learner_gpus

    @property
    def in_flight(self) -> int:
        """The most episodes that can be in flight."""
        admitted = self.batch_size * self.group_size * (1 + self.max_staleness)
        return min(admitted, self.rollout_gpus * self.engine.slots)

    @property
    def rollout_nodes(self) -> int:
        return math.ceil(self.rollout_gpus / self.gpus_per_node)

    @property
    def learner_nodes(self) -> int:
        return math.ceil(self.learner_gpus / self.gpus_per_node)

    def ship_s(self, tokens: float) -> float:
        """The batch leaves the driver's node for the learners."""
        return 0.0 if self.local else tokens * self.driver.bytes_per_token / self.network.bandwidth

    def sync_s(self) -> float:
        return self.network.all_reduce_s(self.weights, self.learner_nodes)

    def arrival_s(self, node: int) -> float:
        return 0.0 if self.local else self.network.arrival_s(self.weights, node, self.rollout_nodes)

    @property
    def load_s(self) -> float:
        """An engine stands still while it takes new weights."""
        return self.weights / self.load_bandwidth


def split(gpus: int, engine: Engine, learner: Learners, episodes: Episodes, group_size: int, teach_share: float) -> int:
    """How many of the GPUs learn, so that both sides are equally fast: whole nodes of 8 above 8 GPUs."""
    sampled = group_size * episodes.mean_tokens
    trained = episodes.tree(sampled) / sampled * teach_share
    share = engine.tokens_per_s * trained / (engine.tokens_per_s * trained + learner.tokens_per_s)
    unit = 1 if gpus <= 8 else 8
    units = gpus // unit
    return unit * min(units - 1, max(1, round(units * share)))


def _about_one(rng: Random, sigma: float) -> float:
    """A log-normal number with mean 1."""
    return rng.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0
