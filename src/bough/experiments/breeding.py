"""From the scores of a generation to the members of the next one: founders, selection, children.

Every decision depends only on the scores and on a generator that the seed and the generation's
number determine, so a run that resumes decides the same. Ties are broken by name.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from bough.experiments.evolve_settings import EvolveConfig, is_valid, own_values, ranges
from bough.experiments.generation import Generation, Individual, Score, writing

Scores = Mapping[str, Score]
# Draws until the settings of a member are valid together; then it keeps those that it would have without a draw.
TRIES = 20


class Place(NamedTuple):
    """A place in the next generation: the member itself, if `lives`, or a child of it."""

    member: str
    lives: bool


def founders(config: EvolveConfig, rank: int) -> list[Individual]:
    """The members of the first generation, without their adapters."""
    given, rng = own_values(config), _generator(config, "founders")
    drawn = config.population.initial == "sampled"
    return [
        Individual(name=f"g0-{number}", settings=_sample(config, given, rng) if drawn and number else given, rank=rank)
        for number in range(config.population.size)
    ]


def _sample(config: EvolveConfig, given: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """All mutable settings drawn from their ranges."""
    for _ in range(TRIES):
        drawn = given | {name: span.draw(rng) for name, span in ranges(config).items()}
        if is_valid(config, drawn):
            return drawn
    return given


def ranked(scores: Scores) -> list[str]:
    """The members, fittest first."""
    return sorted(scores, key=lambda name: (-scores[name].fitness, name))


def select(config: EvolveConfig, scores: Scores, number: int) -> list[Place]:
    """The places of the generation after generation `number`.

    With halving these are the better half of the members. Otherwise every place goes to a child of
    the winner of a tournament among members drawn with replacement; with elitism the first place
    is that of the fittest member itself.
    """
    order, selection = ranked(scores), config.selection
    if config.population.halving:
        return [Place(name, lives=True) for name in order[: max(1, len(order) // 2)]]
    rng = _generator(config, f"selection {number}")
    elite = [Place(order[0], lives=True)] if selection.elitism else []
    drawn = (rng.choices(order, k=selection.tournament_size) for _ in range(len(order) - len(elite)))
    return [*elite, *(Place(min(some, key=order.index), lives=False) for some in drawn)]


def breed(config: EvolveConfig, generation: Generation, places: list[Place]) -> Generation:
    """Writes the next generation.

    Survivors are copied bit for bit. Children inherit their parent's adapter, its moments
    and its number of updates.
    """
    number, folder = generation.number + 1, generation.path.parent
    rng = _generator(config, f"mutation {generation.number}")
    with writing(folder, number, trained=False, used=generation.used) as draft:
        for at, (member, lives) in enumerate(places):
            name = member if lives else f"g{number}-{at}"
            shutil.copytree(generation.folder(member), draft / name)
            if not lives:
                parent = generation.individual(member)
                settings, mutation = mutated(config, parent.settings, rng)
                replace(
                    parent, name=name, born=number, parent=member, settings=settings, mutation=mutation
                ).write(draft / name)  # fmt: skip
    return Generation.read(folder / f"generation-{number:05}")


def mutated(
    config: EvolveConfig, settings: dict[str, Any], rng: random.Random
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A child's settings, and how they differ from those of its parent: in nothing, or in one of them.

    Each mutable setting is as likely as the others. With the probability of a resample it is drawn from
    its range, else it is multiplied by one of the two factors.
    """
    mutation, spans = config.mutation, ranges(config)
    weights = (mutation.no_mutation, mutation.hyper_parameter)
    [changes] = rng.choices((False, True), weights) if any(weights) else [False]
    for _ in range(TRIES if changes and spans else 0):
        name = rng.choice(list(spans))
        present = settings[name]
        if rng.random() < mutation.resample:
            value = spans[name].draw(rng, present)
        else:
            value = spans[name].perturb(present, rng, shrink=mutation.shrink_factor, grow=mutation.grow_factor)
        changed = {**settings, name: value}
        if is_valid(config, changed):
            return changed, {"kind": "hyper_parameter", "setting": name, "before": present, "after": value}
    return settings, {"kind": "no_mutation"}


def _generator(config: EvolveConfig, purpose: str) -> random.Random:
    return random.Random(f"{config.seed} {purpose}")  # noqa: S311  no secret
