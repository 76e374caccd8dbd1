"""Members on a cluster: the connection, the workers, and what trains and measures the members on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass

from bough.cluster.actors import Actors
from bough.cluster.connection import connected, nodes
from bough.cluster.plan import Plan, make_plan
from bough.cluster.worker import Surroundings
from bough.evolution.part import Code, Part
from bough.evolution.placement import Placement
from bough.evolution.records import Records
from bough.evolution.settings import EvolveConfig
from bough.evolution.spread import SpreadFileFitness, SpreadPlayers, SpreadTrainees

# Calls that a worker answers while it plays or trains.
SPARE_THREADS = 2

Notify = Callable[[str], None]


@dataclass(frozen=True)
class MembersThere:
    """`players` is None where there is no environment."""

    trainees: SpreadTrainees
    file_fitness: SpreadFileFitness
    players: SpreadPlayers | None
    actors: Actors


@contextmanager
def members_on_cluster(config: EvolveConfig, records: Records, notify: Notify) -> Iterator[MembersThere]:
    """Connects to the cluster of the settings. A worker loads the base model when it gets its first members."""

    def plan() -> Plan:
        return make_plan(config.cluster, nodes(), concurrency=config.population.size, uses_gpu=True)

    with connected(config.cluster):
        chosen = plan()
        notify(
            f"cluster of {chosen.cluster}: {config.population.size} members on {chosen.workers} workers, "
            "which load the model first"
        )
        actors = Actors(
            chosen, Part, config, records, Code.of(config).pack(), Surroundings.here(gpus=chosen.gpus_per_worker),
            threads=config.fitness.concurrency + SPARE_THREADS, room=lambda: plan().room,
            timeout_s=config.cluster.timeout_s, notify=notify,
        )  # fmt: skip
        placement = Placement(actors)
        players = SpreadPlayers(config, placement) if config.environment.name else None
        with closing(actors), closing(players) if players is not None else nullcontext():
            yield MembersThere(SpreadTrainees(placement), SpreadFileFitness(placement), players, actors)
