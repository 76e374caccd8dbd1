"""The clusters that `scale.py` simulates: measured constants, and what is varied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from benchmarks.scale_model import Cluster, Driver, Engine, Episodes, Failures, Learners, Network, split
from benchmarks.scale_simulator import IN_FLIGHT

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("scale_constants.yaml")
RESULTS = Path(__file__).with_name("results")
GROUP, STALENESS = 8, 2
FIXED_BATCH = 512
GPUS = [8, 32, 128, 512, 2048, 10_000]
SIZES = {"10 MB": 10e6, "100 MB": 100e6, "1 GB": 1e9, "10 GB": 10e9}
USUAL = "100 MB"
LARGE = 2048


@dataclass(frozen=True)
class Constant:
    """A number, its unit, where it was measured (or "assumed"), and how it follows from there."""

    value: float
    unit: str
    source: str
    how: str


@dataclass(frozen=True)
class Scenario:
    """A row of a table: the values that are shown for it, the cluster, and how long and how finely it is simulated."""

    table: str
    shown: dict[str, Any]
    cluster: Cluster
    batches: int = 8
    in_flight: int = IN_FLIGHT


def constants(file: Path = FILE) -> dict[str, Constant]:
    return {name: Constant(**entry) for name, entry in yaml.safe_load(file.read_text()).items()}


def cluster_of(values: dict[str, Constant], gpus: int) -> Cluster:
    """The usual cluster: both sides equally fast, two episodes per batch and slot, and workers that write."""
    of = {name: constant.value for name, constant in values.items()}
    slots = int(of["engine_slots"])
    full_step = slots / of["engine_tokens_per_s"]
    engine = Engine(of["engine_step_s"], (full_step - of["engine_step_s"]) / slots, slots)
    episodes = Episodes(
        of["sampled_tokens"], of["length_tail"], of["longest"], int(of["turns"]), of["read_tokens_per_turn"],
        of["prompt_tokens"],
    )  # fmt: skip
    learner = Learners(of["learner_tokens_per_s"])
    learner_gpus = split(gpus, engine, learner, episodes, GROUP, of["teach_share"])
    rollout_gpus, per_node = gpus - learner_gpus, int(of["gpus_per_node"])
    return Cluster(
        engine=engine,
        episodes=episodes,
        network=Network(of["object_bandwidth"], of["learner_bandwidth"], of["latency_s"]),
        driver=Driver(of["writer_s"], of["call_s"], rollout_gpus, of["notice_s"], of["bytes_per_token"]),
        learner=learner,
        rollout_gpus=rollout_gpus,
        learner_gpus=learner_gpus,
        batch_size=2 * rollout_gpus * slots // GROUP,
        group_size=GROUP,
        max_staleness=STALENESS,
        weights=SIZES[USUAL],
        failures=Failures(of["node_mtbf_s"], of["restart_s"], of["slow_share"], of["slowdown"]),
        gpus_per_node=per_node,
        teach_share=of["teach_share"],
        load_bandwidth=of["load_bandwidth"],
        local=gpus <= per_node,
    )


def scenarios(values: dict[str, Constant]) -> list[Scenario]:
    found = []
    for gpus in GPUS:
        usual = cluster_of(values, gpus)
        shown = {"GPUs": gpus}
        found.append(Scenario("one writer", shown, replace(usual, driver=replace(usual.driver, writers=1))))
        found.append(Scenario("fixed batch", shown, replace(usual, batch_size=FIXED_BATCH)))
        for size, weights in SIZES.items():
            found.append(Scenario("workers write", shown | {"weights": size}, replace(usual, weights=weights)))
    found += [Scenario("varied", {"what": what}, cluster) for what, cluster in varied(values).items()]
    # Failures are rare: more batches, of a cluster that is shrunk further.
    return found + [
        Scenario("failing", {"what": what}, cluster, batches=120, in_flight=400)
        for what, cluster in failing(values).items()
    ]


def varied(values: dict[str, Constant]) -> dict[str, Cluster]:
    """One thing changed at a time on the usual cluster of `LARGE` GPUs."""
    usual = cluster_of(values, LARGE)
    large = replace(usual, weights=SIZES["10 GB"])
    failures, network, episodes = usual.failures, usual.network, usual.episodes
    longer = replace(episodes, mean_tokens=16_384, turns=256)
    waiting = replace(episodes, wait_s=1.0, wait_tail=1.0)
    return {
        "as it is": usual,
        "max_staleness 0": replace(usual, max_staleness=0),
        "max_staleness 1": replace(usual, max_staleness=1),
        "max_staleness 4": replace(usual, max_staleness=4),
        "weights change between episodes only": replace(usual, swap_mid_episode=False),
        "half the batch": replace(usual, batch_size=usual.batch_size // 2),
        "all episodes equally long": replace(usual, episodes=replace(episodes, tail=0.0)),
        "length tail 1.5, longest 32 × the mean": replace(usual, episodes=replace(episodes, tail=1.5, longest=32.0)),
        "episodes of 16,384 tokens": replace(usual, episodes=longer),
        "the same, one writer": replace(usual, episodes=longer, driver=replace(usual.driver, writers=1)),
        "each turn waits 1 s for its environment": replace(usual, episodes=waiting),
        "no slow GPUs": replace(usual, failures=replace(failures, slow_share=0.0)),
        "10% of the GPUs 4 × slower": replace(usual, failures=replace(failures, slow_share=0.1, slowdown=4.0)),
        "the same, all get as much": replace(
            usual, failures=replace(failures, slow_share=0.1, slowdown=4.0, slow_get_less=False)
        ),
        "10 GB": large,
        "10 GB, episodes wait for the newest weights": replace(large, wait_for_newest=True),
        "10 GB, link of 1.25 GB/s": replace(large, network=replace(network, bandwidth=1.25e9)),
        "10 GB, link of 12.5 GB/s": replace(large, network=replace(network, bandwidth=12.5e9)),
        "100 MB, all from one node": replace(usual, network=replace(network, fan_out=0)),
        "10 GB, all from one node": replace(large, network=replace(network, fan_out=0)),
    }


def failing(values: dict[str, Constant]) -> dict[str, Cluster]:
    """The same cluster with nodes that fail."""
    usual = cluster_of(values, LARGE)
    failures = usual.failures
    day, hour = 86_400.0, 3600.0
    return {
        "no failures": replace(usual, failures=replace(failures, node_mtbf_s=0.0)),
        "a node fails once a day": replace(usual, failures=replace(failures, node_mtbf_s=day)),
        "a node fails once an hour": replace(usual, failures=replace(failures, node_mtbf_s=hour)),
        "once an hour, back after 10 s": replace(usual, failures=replace(failures, node_mtbf_s=hour, restart_s=10.0)),
    }
