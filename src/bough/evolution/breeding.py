"""From the scores of a generation to the members of the next one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from bough.evolution.crossover import DivergedError
from bough.evolution.generation import Generation, writing
from bough.evolution.individual import Individual
from bough.evolution.inheritance import bear, copy, cross
from bough.evolution.member_settings import is_valid, own_values, ranges
from bough.evolution.mutation import Mutation, Mutator
from bough.evolution.selection import Place, Scores, confident, halving, ranked, tournament, truncation
from bough.evolution.settings import EvolveConfig


def mutator_of(config: EvolveConfig) -> Mutator:
    """The mutations that the settings ask for."""
    mutation = config.mutation
    return Mutator(
        ranges=ranges(config),
        weights={
            "no_mutation": mutation.no_mutation,
            "hyper_parameter": mutation.hyper_parameter,
            "rank": mutation.rank,
            "crossover": mutation.crossover,
        },
        shrink=mutation.shrink_factor,
        grow=mutation.grow_factor,
        resample=mutation.resample,
        max_rank=mutation.max_rank,
        valid=lambda settings: is_valid(config, settings),
    )


def founders(config: EvolveConfig, rank: int) -> list[Individual]:
    """The members of the first generation, without their adapters."""
    given, mutator = own_values(config), mutator_of(config)
    rng = _generator(config, "founders")
    drawn = config.population.initial == "sampled"
    return [
        Individual(
            name=f"g0-{number}",
            settings=mutator.sample(given, rng) if drawn and number else given,
            rank=rank,
        )
        for number in range(config.population.size)
    ]


def select(config: EvolveConfig, scores: Scores, number: int) -> list[Place]:
    """The places of the generation after generation `number`."""
    rng, selection = _generator(config, f"selection {number}"), config.selection
    if config.population.halving:
        return halving(scores)
    if selection.name == "truncation":
        return truncation(scores, share=selection.truncation, rng=rng)
    if selection.name == "confident":
        return confident(scores, alpha=selection.alpha)
    return tournament(scores, size=selection.tournament_size, elitism=selection.elitism, rng=rng)


def breed(config: EvolveConfig, generation: Generation, scores: Scores, places: list[Place]) -> Generation:
    """Writes the next generation. Members that live on are copied bit for bit."""
    number, folder = generation.number + 1, generation.path.parent
    nursery = _Nursery(config, generation, scores)
    with writing(folder, number, trained=False, used=generation.used) as draft:
        for at, place in enumerate(places):
            if place.lives:
                copy(generation.folder(place.member), draft / place.member)
            else:
                name = f"g{number}-{at}"
                nursery.bear(place.member, draft / name)
    return Generation.read(folder / f"generation-{number:05}")


class _Nursery:
    """Draws the mutations of one generation's children and writes them."""

    def __init__(self, config: EvolveConfig, generation: Generation, scores: Scores) -> None:
        self.config, self.generation, self.order = config, generation, ranked(scores)
        self.mutator, self.rng = mutator_of(config), _generator(config, f"mutation {generation.number}")

    def bear(self, parent: str, folder: Path) -> None:
        before, kind = self.generation.individual(parent), self.mutator.kind(self.rng)
        settings, rank, mutation = before.settings, before.rank, Mutation("no_mutation")
        if kind == "hyper_parameter":
            settings, mutation = self.mutator.hyper_parameter(settings, self.rng)
        elif kind == "rank":
            rank, mutation = self.mutator.rank(rank)
        elif kind == "crossover" and (other := self._other_parent(parent)) is not None:
            mutation = Mutation("crossover", other_parent=other)
        born = Individual(
            name=folder.name,
            born=self.generation.number + 1,
            parent=parent,
            mutation=mutation.to_json(),
            settings=settings,
            rank=rank,
        )
        if mutation.other_parent is not None:
            other_folder, how = self.generation.folder(mutation.other_parent), self.config.mutation.crossover_method
            try:
                cross(self.generation.folder(parent), other_folder, folder, born, how)
                return
            except DivergedError:
                born = replace(born, mutation=Mutation("no_mutation").to_json())
        bear(self.generation.folder(parent), folder, born)

    def _other_parent(self, parent: str) -> str | None:
        """The winner of a tournament among the other members."""
        others = [name for name in self.order if name != parent]
        if not others:
            return None
        return min(self.rng.choices(others, k=self.config.selection.tournament_size), key=self.order.index)


def _generator(config: EvolveConfig, purpose: str) -> random.Random:
    return random.Random(f"{config.seed} {purpose}")  # noqa: S311  no secret
