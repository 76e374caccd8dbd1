"""From the scores of a generation to the members of the next one."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bough.errors import InputError
from bough.evaluation.intervals import anytime_p
from bough.evaluation.paired import holm
from bough.experiments.evolve_settings import EvolveConfig, Range, is_valid, own_values, ranges
from bough.experiments.generation import OPTIMIZER, Generation, Individual, Score, differences, writing
from bough.files import derived_seed, read_json, write_json
from bough.policy.adapters import CONFIG, TENSORS, AdapterWeights, LoraPair


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


# Who is in the next generation: members that live on, and the parents of children.
# | selection  | next generation                                                                          |
# |------------|------------------------------------------------------------------------------------------| |
# tournament | the fittest, if elitism is on; every other place goes to a child of a tournament's winner | |
# truncation | the worst share is replaced by children of the best share (PBT)                           | | confident
# | a member is replaced only if a sequential test shows that another one is better           | | halving    | the
# better half; no children                                                              |
# Ties are broken by name, so a selection depends on the scores and the generator alone.

Scores = Mapping[str, Score]


@dataclass(frozen=True)
class Place:
    """A place in the next generation: the member itself, if `lives`, or a child of it."""

    member: str
    lives: bool


def ranked(scores: Scores) -> list[str]:
    """The members, fittest first."""
    return sorted(scores, key=lambda name: (-scores[name].fitness, name))


def tournament(scores: Scores, *, size: int, elitism: bool, rng: random.Random) -> list[Place]:
    """Every place goes to the child of the fittest of `size` members, drawn with replacement.

    With elitism the first place is that of the fittest member itself.
    """
    order = ranked(scores)
    place = {name: number for number, name in enumerate(order)}
    elite = [Place(order[0], lives=True)] if elitism else []
    winners = [min(rng.choices(order, k=size), key=place.__getitem__) for _ in range(len(order) - len(elite))]
    return [*elite, *(Place(name, lives=False) for name in winners)]


def truncation(scores: Scores, *, share: float, rng: random.Random) -> list[Place]:
    """The worst `share` of the members are replaced by children of members of the best `share`."""
    order = ranked(scores)
    count = min(max(1, round(share * len(order))), len(order) // 2)
    best, rest = order[:count], order[: len(order) - count]
    return [*(Place(name, lives=True) for name in rest), *(Place(rng.choice(best), lives=False) for _ in range(count))]


def confident(scores: Scores, *, alpha: float) -> list[Place]:
    """A member that is shown to be worse than another is replaced by a child of the fittest that is better than it.

    Every ordered pair of members is compared on the tasks that both have, by a test that holds
    at any number of tasks. All pairs together (Holm) err in at most a share `alpha` of generations:
    only then a member is replaced by the child of one that is not better.
    """
    order = ranked(scores)
    pairs = list(permutations(order, 2))
    found = [anytime_p(differences(scores[worse], scores[better]), one_sided=True) for worse, better in pairs]
    better_than: dict[str, list[str]] = {}
    for (worse, better), p in zip(pairs, holm(found), strict=True):
        if p <= alpha:
            better_than.setdefault(worse, []).append(better)
    lives = [Place(name, lives=True) for name in order if name not in better_than]
    # `order` is fittest first, and so are the members that each is worse than.
    return [*lives, *(Place(better_than[name][0], lives=False) for name in order if name in better_than)]


def halving(scores: Scores) -> list[Place]:
    """The better half of the members, at least one."""
    order = ranked(scores)
    return [Place(name, lives=True) for name in order[: max(1, len(order) // 2)]]


def decided(places: Sequence[Place]) -> bool:
    """Whether a confident selection has left a single member alive: more tasks could not change it."""
    return sum(place.lives for place in places) <= 1


# How a child differs from its parent: in nothing, in one setting, in rank, or by a second parent.

Kind = Literal["no_mutation", "hyper_parameter", "rank", "crossover"]
Settings = dict[str, Any]
# Draws until the settings of a child are valid together; then it stays as its parent is.
TRIES = 20


@dataclass(frozen=True)
class Mutation:
    """What was changed: of one `setting`, from `before` to `after`; for a crossover, the other parent's name."""

    kind: Kind
    setting: str | None = None
    before: Any = None
    after: Any = None
    other_parent: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        if self.setting is not None:
            return f"{self.setting} {self.before} → {self.after}"
        return f"crossover with {self.other_parent}" if self.other_parent else self.kind


@dataclass(frozen=True)
class Mutator:
    """Draws mutations. `weights` are the relative probabilities of the kinds.

    A hyper-parameter mutation changes one setting of `ranges`, each as likely as the others: with
    probability `resample` to a value drawn from its range, else by a factor `shrink` or `grow`.
    `valid` tells whether settings may be used together. The rank doubles, up to `max_rank`.
    """

    ranges: Mapping[str, Range]
    weights: Mapping[Kind, float]
    shrink: float
    grow: float
    resample: float
    max_rank: int
    valid: Callable[[Settings], bool]

    def kind(self, rng: random.Random) -> Kind:
        """The kind of a child's mutation."""
        kinds = [kind for kind, weight in self.weights.items() if weight > 0]
        if not kinds:
            return "no_mutation"
        return rng.choices(kinds, [self.weights[kind] for kind in kinds])[0]

    def hyper_parameter(self, settings: Settings, rng: random.Random) -> tuple[Settings, Mutation]:
        """The settings with one of them changed."""
        for _ in range(TRIES if self.ranges else 0):
            name = rng.choice(list(self.ranges))
            span, present = self.ranges[name], settings[name]
            if rng.random() < self.resample:
                value = span.draw(rng, present)
            else:
                value = span.perturb(present, rng, shrink=self.shrink, grow=self.grow)
            changed = {**settings, name: value}
            if self.valid(changed):
                return changed, Mutation("hyper_parameter", name, present, value)
        return settings, Mutation("no_mutation")

    def rank(self, rank: int) -> tuple[int, Mutation]:
        """Twice the rank, if that is allowed."""
        if 2 * rank > self.max_rank:
            return rank, Mutation("no_mutation")
        return 2 * rank, Mutation("rank", "lora_r", rank, 2 * rank)

    def sample(self, settings: Settings, rng: random.Random) -> Settings:
        """All mutable settings drawn from their ranges, for a member of the first generation."""
        for _ in range(TRIES):
            drawn = {name: span.draw(rng) for name, span in self.ranges.items()}
            if self.valid({**settings, **drawn}):
                return {**settings, **drawn}
        return settings


# Two adapters merged into one of the first one's shape.
# An adapter adds s·B·A to each weight matrix. What is merged are these products, because equal products can have
# different factors. The result is cut to the first adapter's rank by its singular values, which is the best
# approximation of that rank.
# TIES (Yadav et al., 2306.01708): of each product only the largest entries are kept, per entry the sign with more
# weight wins, and the entries with that sign are averaged.

How = Literal["average", "ties"]
# Share of a product's entries that TIES keeps.
KEPT = 0.2
# More singular vectors than are kept make a random projection find the kept ones exactly enough.
OVERSAMPLING = 16


class DivergedError(ValueError):
    """Products that are too large for their numbers have no singular values."""


def merged(first: Mapping[str, LoraPair], second: Mapping[str, LoraPair], how: How) -> dict[str, LoraPair]:
    """The factors of the merged products for each layer of the first adapter, with the scale in `up_OR`.

    Where the second adapter lacks a layer, its product is 0. DivergedError where a product is not finite.
    """
    found = {}
    for layer, own in first.items():
        other = second.get(layer) or LoraPair(own.down_RI[:1], torch.zeros_like(own.up_OR[:, :1]))
        try:
            found[layer] = (_average if how == "average" else _ties)(own, other)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise DivergedError(f"{layer}: {error}") from error
        if not all(bool(factor.isfinite().all()) for factor in found[layer]):
            raise DivergedError(f"{layer}: the merged product is not finite")
    return found


def _average(own: LoraPair, other: LoraPair) -> LoraPair:
    """Half of each product. Both together have the sum of the ranks, so only a small matrix is decomposed."""
    down, up = torch.cat([own.down_RI, other.down_RI]), torch.cat([own.up_OR, other.up_OR], dim=1) / 2
    left_OQ, inner_left = torch.linalg.qr(up)
    right_IQ, inner_right = torch.linalg.qr(down.T)
    u, s, v = torch.linalg.svd(inner_left @ inner_right.T)
    return _cut(left_OQ @ u, s, right_IQ @ v.T, len(own.down_RI))


def _ties(own: LoraPair, other: LoraPair) -> LoraPair:
    products = torch.stack([_trimmed(pair.up_OR @ pair.down_RI) for pair in (own, other)])
    sign_OI = products.sum(0).sign()
    agree = (products.sign() == sign_OI) & (products != 0)
    merged_OI = (products * agree).sum(0) / agree.sum(0).clamp(min=1)
    rank = len(own.down_RI)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the projection is random; a child must be the same after a resume
        u, s, v = torch.svd_lowrank(merged_OI, q=min(rank + OVERSAMPLING, *merged_OI.shape), niter=4)
    return _cut(u, s, v, rank)


def _trimmed(product_OI: Tensor) -> Tensor:
    """The product with only its largest entries."""
    count = max(1, round(KEPT * product_OI.numel()))
    least = product_OI.abs().flatten().kthvalue(product_OI.numel() - count + 1).values
    return product_OI.where(product_OI.abs() >= least, 0.0)


def _cut(left_OK: Tensor, values_K: Tensor, right_IK: Tensor, rank: int) -> LoraPair:
    """The product of the `rank` largest singular values, shared evenly between both factors; missing ones are 0."""
    roots = values_K[:rank].sqrt()
    missing = rank - len(roots)
    down, up = (right_IK[:, :rank] * roots).T, left_OK[:, :rank] * roots
    return LoraPair(
        torch.nn.functional.pad(down, (0, 0, 0, missing)).contiguous(),
        torch.nn.functional.pad(up, (0, missing)).contiguous(),
    )


# What a child inherits, as files: adapter and moments of its parent, copied, grown in rank, or merged with another's.
# Nothing here needs a model in memory.

FIRST_MOMENT = "exp_avg"
# With any of these an adapter has another scale or rank than lora_alpha and r say.
ODD = ("use_rslora", "rank_pattern", "alpha_pattern")


def check_plain(start: Path) -> None:
    """InputError for an adapter that cannot be grown or merged."""
    config = read_json(start / CONFIG)
    if odd := [name for name in ODD if config.get(name)]:
        raise InputError(
            f"{start}: an adapter with {', '.join(odd)} cannot be grown or merged; "
            "leave out rank_mutation and crossover, or merge it into the model first"
        )


def copy(parent: Path, child: Path) -> None:
    """The member's files as they are, bit for bit."""
    shutil.copytree(parent, child)


def bear(parent: Path, child: Path, born: Individual) -> None:
    """A child with its parent's adapter and moments, described as `born`; its rank grows to what that says."""
    before = Individual.read(parent)
    copy(parent, child)
    born = replace(born, step=before.step, optimizer=before.optimizer)
    if born.rank > before.rank:
        _grow(child, before.rank, born.rank, derived_seed(0, born.name))
    born.write(child)


def cross(parent: Path, other: Path, child: Path, born: Individual, how: How) -> None:
    """A child with the merged adapter of two parents.

    The factors of a merged adapter are new, so no moments belong to them: its optimizer starts without.
    DivergedError, and no child, where the weights of a parent are too large to be merged.
    """
    weights = merged(AdapterWeights.read(parent).layers, AdapterWeights.read(other).layers, how)
    before = Individual.read(parent)
    copy(parent, child)
    (child / OPTIMIZER).unlink(missing_ok=True)
    config = read_json(child / CONFIG)
    scale = config["lora_alpha"] / config["r"]
    save_file(
        {
            f"base_model.model.{layer}.lora_{side}.weight": tensor.contiguous()
            for layer, (down, up) in weights.items()
            for side, tensor in (("A", down), ("B", up / scale))
        },
        child / TENSORS,
    )
    replace(born, step=before.step, optimizer={}).write(child)


def _grow(folder: Path, rank: int, wanted: int, seed: int) -> None:
    """The adapter with a larger rank, computing the same: new rows of A are drawn, new columns of B are 0.

    alpha grows with the rank, so the scale stays and the moments stay valid.
    """
    config: dict[str, Any] = read_json(folder / CONFIG)
    assert config["r"] == rank and wanted % rank == 0, (config["r"], rank, wanted)
    config |= {"r": wanted, "lora_alpha": config["lora_alpha"] * wanted // rank}
    write_json(folder / CONFIG, config)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(folder / TENSORS)
    for name in sorted(tensors):
        new = wanted - rank
        if ".lora_A." in name:
            bound = 1 / math.sqrt(tensors[name].shape[1])  # as peft draws a new adapter
            drawn = torch.empty(new, tensors[name].shape[1]).uniform_(-bound, bound, generator=generator)
            tensors[name] = torch.cat([tensors[name], drawn.to(tensors[name].dtype)])
        else:
            tensors[name] = torch.nn.functional.pad(tensors[name], (0, new))
    save_file(tensors, folder / TENSORS)
    if (folder / OPTIMIZER).exists():
        moments = load_file(folder / OPTIMIZER)
        save_file({name: _grown(name, value, wanted - rank) for name, value in moments.items()}, folder / OPTIMIZER)


def _grown(name: str, value: Tensor, new: int) -> Tensor:
    """A moment of a weight that has grown. The optimizer has both matrices of each layer in turn, A first.

    First moments of new entries are 0. Second moments are the mean of the others: with 0 the first
    updates of new entries would be several times too large.
    """
    if value.dim() < 2:  # the number of steps
        return value
    index, _, kind = name.partition(".")
    fill = 0.0 if kind == FIRST_MOMENT else float(value.mean())
    pad = (0, 0, 0, new) if int(index) % 2 == 0 else (0, new)
    return torch.nn.functional.pad(value, pad, value=fill).contiguous()
