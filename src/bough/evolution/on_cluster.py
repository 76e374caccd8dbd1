"""Members on a cluster: the connection, the workers, and what trains and measures the members on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass

from bough.cluster.actors import Actors
from bough.cluster.connection import connected, nodes
from bough.cluster.plan import make_plan
from bough.cluster.pool import WorkerPool
from bough.cluster.worker import Surroundings
from bough.evolution.part import Code, Part
from bough.evolution.placement import Placement
from bough.evolution.records import Records
from bough.evolution.settings import EvolveConfig
from bough.evolution.spread import SpreadFileFitness, SpreadPlayers, SpreadTrainees
from bough.plural import plural

# Calls that a worker answers while it plays or trains.
SPARE_CALLS = 2

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
    """Connects to the cluster of the settings. Its workers begin to load the base model."""
    with connected(config.cluster):
        plan = make_plan(config.cluster, nodes(), concurrency=config.population.size, uses_gpu=True)
        notify(
            f"cluster of {plan.cluster}: {plural(config.population.size, 'member')} on "
            f"{plural(plan.workers, 'worker, which loads', 'workers, which load')} the model first"
        )
        given = (config, records, Code.of(config).pack(), Surroundings.here(gpus=plan.gpus_per_worker))
        max_calls = config.fitness.concurrency + SPARE_CALLS
        pool = WorkerPool.on_ray(Part, given, plan, max_calls=max_calls, timeout_s=config.cluster.timeout_s, say=notify)
        actors = Actors(pool)
        placement = Placement(actors)
        players = SpreadPlayers(config, placement) if config.environment.name else None
        with closing(actors), closing(players) if players is not None else nullcontext():
            yield MembersThere(SpreadTrainees(placement), SpreadFileFitness(placement), players, actors)
