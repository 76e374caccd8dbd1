"""A model card: the README of trained weights, written from the files of their run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bough.cache import cache_folder
from bough.cards import measured, training
from bough.cards.base_model import BaseModel, base_model
from bough.cards.front_matter import all_datasets, front_matter
from bough.cards.lineage import read_json
from bough.cards.markdown import code, fenced, plain, table
from bough.cards.measured import Measured
from bough.cards.pedigree import pedigrees
from bough.cards.places import without_places
from bough.cards.subject import Subject, find_subject
from bough.cards.usage import usage
from bough.config.card import CardConfig
from bough.disk import write_atomically
from bough.errors import InputError


@dataclass(frozen=True)
class Card:
    """The text of a card, where to write it, and what is missing from it."""

    text: str
    path: Path
    missing: tuple[str, ...]


def make_card(config: CardConfig) -> Card:
    """The card of the weights in `config.run`."""
    subject = find_subject(config.run, config.evaluations)
    base = base_model(subject.lineage.base, config.base_model)
    found = measured.measured(subject, base)
    title = config.name or (config.repo.partition("/")[2] if config.repo else subject.name)
    parts = [
        front_matter(subject, base, found, title, config),
        f"# {plain(title)}",
        *_body(subject, base, found, config),
    ]
    text = without_places("\n\n".join(parts) + "\n", _places(subject))
    return Card(text, config.output or subject.weights / "README.md", tuple(_missing(base, found, config)))


def write_card(config: CardConfig) -> Card:
    """Makes the card and writes it; an existing file is replaced only with `overwrite`."""
    made = make_card(config)
    if made.path.is_dir():
        raise InputError(f"{made.path} is a folder; --output must be a file")
    if made.path.exists() and not config.overwrite:
        raise InputError(f"{made.path} exists; give --overwrite to replace it, or another --output")
    try:
        made.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(made.path, made.text)
    except OSError as error:
        raise InputError(f"{made.path}: cannot be written: {error.strerror}") from None
    return made


def _body(subject: Subject, base: BaseModel, found: Sequence[Measured], config: CardConfig) -> Iterator[str]:
    lineage = subject.lineage
    yield _introduction(subject, base)
    yield "## Training objective"
    yield from training.objective(subject.about, lineage)
    yield "## Training pipeline"
    yield fenced(training.pipeline(base, lineage))
    if ancestry := list(pedigrees(lineage)):
        yield "## Pedigree"
        yield from ancestry
    yield "## Data"
    yield from training.data(lineage)
    yield "## Hyper-parameters"
    yield training.settings(lineage.stages)
    yield "## Evaluation"
    yield from measured.section(found, measured.gate_notes(subject, base))
    yield "## Usage"
    yield from usage(subject, base, config.repo)
    yield "## Sources and terms"
    yield _sources(subject, base, config)
    yield (
        "Use of this model is subject to the licence of the base model and to the terms of the data. It is intended "
        "for the environments named above and has not been evaluated anywhere else. Review what an agent does before "
        "giving it access to anything important."
    )


def _introduction(subject: Subject, base: BaseModel) -> str:
    methods = " → ".join(stage.verb.upper() for stage in subject.lineage.stages)
    link = f"[{base.hub_id}](https://huggingface.co/{base.hub_id})" if base.hub_id else plain(base.name)
    if subject.is_adapter:
        what = f"A LoRA adapter for {link}, trained with {methods}. The base model is loaded separately."
    else:
        what = f"A model based on {link}, all weights trained with {methods}."
    return f"{what} {base.note}".strip()


def _sources(subject: Subject, base: BaseModel, config: CardConfig) -> str:
    rows = [["base model", plain(base.shown), base.license or "see its page"]]
    if subject.lineage.start:
        rows.append(["start adapter", plain(subject.lineage.start), "–"])
    rows += [["data", plain(name), "see its page"] for name in all_datasets(subject, config)]
    files = [stage.data.name for stage in subject.lineage.stages if stage.data is not None and not stage.data.hub_id]
    rows += [["data", plain(name), "–"] for name in dict.fromkeys(files)]
    rows.append(["this model", plain(config.repo or subject.name), config.license or "not stated"])
    adapter = read_json(subject.weights / "adapter_config.json", {})
    peft = f", PEFT {plain(adapter['peft_version'])}" if adapter.get("peft_version") else ""
    rows.append(["made with", f"Bough {version('bough')}{peft}", "MIT"])
    return table(["component", "source", "licence"], rows)


def _places(subject: Subject) -> list[Path]:
    """Folders whose names are specific to this machine, unlike /home and /tmp."""
    run = subject.run.resolve()
    own = [run, *run.parents, Path.cwd(), cache_folder()]
    return [Path.home(), *(place for place in own if len(place.parts) > 2)]


def _missing(base: BaseModel, found: Sequence[Measured], config: CardConfig) -> Iterator[str]:
    if base.hub_id is None:
        yield f"the base model is only known as {code(base.name)}; give its name on the Hub with --base-model org/name"
    if config.license is None:
        yield "no licence is stated; give one with --license"
    if config.repo is None:
        yield "the usage section has no name to load; give it with --repo org/name"
    if not any(group.own for group in found):
        yield "no evaluation of these weights was found; name results of `bough eval --environment` with --evaluations"
