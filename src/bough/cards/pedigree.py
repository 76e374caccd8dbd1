"""The pedigree of a winner: its ancestors with their mutations and fitness, and how good it is on untouched data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bough.cards.lineage import Lineage, Stage
from bough.cards.markdown import code, plain, table
from bough.evolution.lineage import FILE_NAME
from bough.evolution.pedigree import Member, Pedigree, read_pedigree
from bough.metrics import is_finite
from bough.plural import plural
from bough.terminal.members import fitness_text, mutation_text, short

# Crossovers double the ancestors with each generation; then only the first parents are listed.
MOST = 40


def pedigrees(lineage: Lineage) -> Iterator[str]:
    """The paragraphs about every stage that evolved a population; nothing if there is none."""
    for stage in lineage.stages:
        if stage.verb == "evolve" and (found := _read(stage)) is not None:
            yield from _section(stage, found)


def _read(stage: Stage) -> Pedigree | None:
    try:
        return read_pedigree(stage.folder / FILE_NAME)
    except OSError:
        return None


def _section(stage: Stage, found: Pedigree) -> Iterator[str]:
    winner = stage.report.get("winner")
    name = winner.get("name") if isinstance(winner, dict) else None
    ancestors = found.ancestors(str(name), found.last)
    if not ancestors:
        return
    metric = plain(stage.report.get("metric", "fitness"))
    yield (
        f"{plain(stage.name)} trained {plural(_founders(found), 'member')} for "
        f"{plural(found.last + 1, 'generation')}. The winner {code(name)} descends "
        f"from {'these members' if len(ancestors) > 1 else 'no other member'}; an ancestor's "
        f"{metric} is that of the generation in which it was selected:"
    )
    if len(ancestors) > MOST:
        ancestors = _first_parents(ancestors, str(name))
        yield "Only the first parent of each crossover is followed."
    headings = ["member", "born in generation", "parents", "mutation", f"{metric} (95% interval)", "settings"]
    yield table(headings, [_row(member) for member in ancestors])
    yield from _measured_again(stage.report, metric)


def _founders(found: Pedigree) -> int:
    return sum(member.generation == 0 for member in found.members)


def _first_parents(ancestors: Sequence[Member], name: str) -> list[Member]:
    by_name = {member.name: member for member in ancestors}
    line = [by_name[name]]
    while (parent := line[0].parent) in by_name and parent is not None and by_name[parent] not in line:
        line.insert(0, by_name[parent])
    return line


def _row(member: Member) -> list[str]:
    mutation = mutation_text(member.mutation.model_dump() if member.mutation else None)
    settings = {**member.settings, "lora_r": member.rank}
    return [
        code(member.name),
        str(member.born),
        ", ".join(map(code, member.parents)) or "–",
        plain(mutation) or "–",
        plain(fitness_text(member.model_dump())),
        ", ".join(code(f"{key}={short(value)}") for key, value in settings.items()),
    ]


def _measured_again(report: Mapping[str, Any], metric: str) -> Iterator[str]:
    """The two numbers of the winner, and their difference."""
    selected, untouched = (_score(report.get(key)) for key in ("selected", "untouched"))
    if selected is None or untouched is None:
        return
    shrinkage = report.get("shrinkage")
    less = f", a shrinkage of {shrinkage:.3g}" if is_finite(shrinkage) else ""
    yield (
        f"The best of several members is partly the luckiest. The winner's {metric} was {selected} when it was "
        f"selected, and is {untouched} on data that no member was selected on{less}."
    )


def _score(found: Any) -> str | None:
    if not isinstance(found, dict) or not is_finite(found.get("fitness")):
        return None
    interval = found.get("interval")
    whole = isinstance(interval, list) and len(interval) == 2 and all(map(is_finite, interval))
    return fitness_text({"fitness": found["fitness"], "interval": interval if whole else None})
