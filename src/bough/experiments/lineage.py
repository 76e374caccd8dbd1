"""`lineage.jsonl`: one line per member and generation, with its parent, mutation, settings and fitness.

    {"generation": 1, "name": "g1-3", "born": 1, "parent": "g0-5", "mutation": {"kind": "hyper_parameter",
     "setting": "beta", "before": 0.1, "after": 0.12}, "settings": {"beta": 0.12}, "rank": 16, "step": 40,
     "loss": 0.61, "fitness": 0.72, "interval": [0.6, 0.81], "tasks": 64, "lost": 0, "place": 1, "lives": true,
     "children": 3}

`place` is its place by fitness, `lives` whether it is a member of the next generation, `children` how
many of its children are. Both are missing in the last generation.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat, StringConstraints, ValidationError, model_validator

from bough.errors import InputError
from bough.experiments.generation import Generation, Place, Scores, ranked
from bough.files import open_file, write_atomically
from bough.ledger import is_finite

FILE_NAME = "lineage.jsonl"
MAX_LINE = 1 << 20


def generation_lines(generation: Generation, scores: Scores, places: Sequence[Place] | None) -> list[dict[str, Any]]:
    """The lines of a generation, fittest first; `places` are those of the next one, None if there is none."""
    lives = {place.member for place in places or () if place.lives}
    children = Counter(place.member for place in places or () if not place.lives)
    lines = []
    for number, name in enumerate(ranked(scores), 1):
        loss = generation.losses.get(name)
        line: dict[str, Any] = {"generation": generation.number, **generation.individual(name).described()}
        line |= {"loss": loss if loss is not None and math.isfinite(loss) else None, **scores[name].to_json()}
        line["place"] = number
        if places is not None:
            line |= {"lives": name in lives, "children": children[name]}
        lines.append(line)
    return lines


def add_generation(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Writes the lines of a generation after those of the generations before it; what else is there is dropped."""
    number = lines[0]["generation"]
    before = [line for line in read_lineage(path) if line["generation"] < number]
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in [*before, *lines]))


def read_lineage(path: Path) -> list[dict[str, Any]]:
    """All lines, as this process or the one before it wrote them. InputError if somebody has changed the file."""
    found: list[dict[str, Any]] = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            try:
                found.append(json.loads(line))
                if type(found[-1]["generation"]) is not int:
                    raise ValueError
            except (ValueError, TypeError, KeyError):
                problem = "this is not a member's line; restore the file, or use --overwrite"
                raise InputError(f"{path}:{number}: {problem}") from None
    return found


# The lineage as a reader of it needs it: checked line by line, with the ancestors of a member.
# A lineage may come from anywhere. A line that is not a member's is left out and named.

MAX_MEMBERS = 20_000
# Damaged lines that are named; the others are only counted.
MAX_NAMED = 20
WHOLE = 10**9

Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=WHOLE)]
Number = Annotated[int, Field(ge=0, le=99_999)]  # of a generation, as in the names of their folders


def _plain(value: Any) -> Any:
    """A setting's value, if it can be shown."""
    if value is None or isinstance(value, bool) or is_finite(value):
        return value
    if isinstance(value, str):
        return value[:500]
    raise ValueError("neither a finite number nor a text")


Value = Annotated[Any, BeforeValidator(_plain)]


class Mutation(BaseModel):
    """How a member differs from its parent."""

    kind: Text
    setting: Text | None = None
    before: Value = None
    after: Value = None


class Member(BaseModel):
    """A member in one generation: a line of `lineage.jsonl`."""

    generation: Number
    name: Text
    born: Number
    parent: Text | None = None
    mutation: Mutation | None = None
    settings: dict[Text, Value] = Field(max_length=100)
    rank: Count = 0
    step: Count = 0
    loss: FiniteFloat | None = None
    fitness: FiniteFloat | None = None
    interval: tuple[FiniteFloat, FiniteFloat] | None = None
    tasks: Count = 0
    lost: Count = 0
    place: Annotated[int, Field(ge=1, le=WHOLE)]
    lives: bool | None = None
    children: Count | None = None

    @model_validator(mode="after")
    def _born_before(self) -> Member:
        if self.born > self.generation:
            raise ValueError("it is born after its generation")
        return self


class Damaged(NamedTuple):
    """A line that is not shown."""

    line: int
    why: str


@dataclass(frozen=True)
class Pedigree:
    """All members of all generations in the order of the file, and what is wrong with it."""

    members: list[Member]
    damaged: list[Damaged]
    left_out: int = 0

    @property
    def last(self) -> int:
        """The newest generation."""
        return max((member.generation for member in self.members), default=-1)

    def ancestors(self, name: str, generation: int) -> list[Member]:
        """A member and all its ancestors, the oldest first, each in the generation in which it was selected."""
        known = {(member.generation, member.name): member for member in self.members}
        line: list[Member] = []
        member = known.get((generation, name))
        while member is not None:
            line.insert(0, member)
            # Its parent was chosen in the generation before its birth.
            member = known.get((member.born - 1, member.parent or ""))
        return line


def read_pedigree(path: Path) -> Pedigree:
    """The lineage in `path`. OSError where it cannot be read."""
    members: dict[tuple[int, str], Member] = {}
    damaged: list[Damaged] = []
    left_out, number = 0, 1
    with open_file(path) as file:
        while text := file.readline(MAX_LINE):
            why = ""
            try:
                found = Member.model_validate_json(text)
                if (found.generation, found.name) in members:
                    why = f"{found.name} is already a member of generation {found.generation}"
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(map(str, first["loc"]))[:100]
                why = f"{where}: {first['msg']}" if where else first["msg"]
            if len(damaged) >= MAX_NAMED if why else len(members) >= MAX_MEMBERS:
                left_out += 1
            elif why:
                damaged.append(Damaged(number, why))
            else:
                members[found.generation, found.name] = found
            number += text.endswith(b"\n")
    return Pedigree(list(members.values()), damaged, left_out)
