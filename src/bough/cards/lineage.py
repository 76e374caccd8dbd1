"""Where weights come from: the training stages that made them, in order, and the data of each.

Every stage records its settings (`config.yaml`) and which rows it kept or dropped
(`ledger.json`). The settings name the weights and the data that it started from, which are
in the folders of earlier stages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bough import disk
from bough.config.base import Config
from bough.config.parts import flattened, leaves
from bough.config.rollouts import CollectConfig
from bough.config.yaml_file import YamlFile
from bough.curation.output import ledger_path
from bough.errors import InputError
from bough.evolution.settings import EvolveConfig
from bough.methods.distill import DistillConfig
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig
from bough.models.resolve import BUILT_IN
from bough.paths import nearby
from bough.rundir import RunDir
from bough.training.metrics_file import MetricsFile
from bough.trajectories.reader import Reader
from bough.trajectories.writer import ENDINGS
from bough.types import Pair

# A setting that only one command has, to recognise its stages by.
VERBS: dict[str, tuple[str, type[Config]]] = {
    "sft": ("step_weighted_loss", SFTConfig),
    "dpo": ("loss_type", DPOConfig),
    "grpo": ("clip_low", GRPOConfig),
    "distill": ("teacher", DistillConfig),
    "evolve": ("population", EvolveConfig),
}
HUB_DATA = "hf:"
# A larger file is not read again only to count its rows.
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Data:
    """A file or a folder of episodes. `made` is the file's ledger, `played` the report of a collection."""

    name: str
    path: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    played: dict[str, Any] = field(default_factory=dict)
    sources: tuple[Data, ...] = ()

    @property
    def reasons(self) -> dict[str, int]:
        """The number of pairs by reason: from the ledger, or counted in the file."""
        told = self.made.get("reasons")
        if isinstance(told, dict):
            return told
        if self.path is None or not self.path.is_file() or self.path.stat().st_size > MOST_BYTES:
            return {}
        counts = Counter(one.reason for one in Reader(self.path, on_error="skip") if isinstance(one, Pair))
        return {reason: count for reason, count in counts.most_common() if reason is not None}

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
    def defaults(self) -> dict[str, Any]:
        """The default settings."""
        return {name: leaf.default for name, leaf in leaves(VERBS[self.verb][1]).items()}


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
            base = model if adapter else _base_of(weights)
            return Lineage(tuple(stages), base, Path(adapter or model).name)
        return Lineage(tuple(stages), model)


def read_stage(folder: Path) -> Stage:
    """The files of one training stage."""
    run = RunDir(folder)
    settings = read_yaml(run.config)
    verb = next((verb for verb, (key, _) in VERBS.items() if key in settings), None)
    if verb is None:
        raise InputError(f"{run.config}: these are not the settings of a training stage ({', '.join(VERBS)})")
    settings = flattened(VERBS[verb][1], settings)
    ledgers = read_json(run.ledger, [])
    train_file, mixture = settings.get("train_file"), settings.get("mixture")
    files = [read_data(str(one), folder) for one in mixture.values()] if isinstance(mixture, dict) and mixture else []
    mixed = Data(", ".join(one.name for one in files), sources=tuple(files)) if files else None
    return Stage(
        folder,
        verb,
        settings,
        [ledger for ledger in ledgers if isinstance(ledger, dict)] if isinstance(ledgers, list) else [],
        read_json(run.report, {}),
        MetricsFile.read(run.metrics),
        read_data(str(train_file), folder) if train_file else mixed,
    )


def read_data(written: str, folder: Path, depth: int = 0) -> Data:
    """The data that the settings of `folder` call `written`, and what it was made of."""
    if written.startswith(HUB_DATA):
        return Data(written)
    path = nearby(written, folder)
    name = Path(written).name
    if path is None or depth > 8:
        return Data(name)
    if path.is_file() and name.startswith("trajectories.") and (path.parent / "report.json").is_file():
        path, name = path.parent, path.parent.name
    if path.is_dir():
        return Data(
            name,
            path,
            settings=flattened(CollectConfig, read_yaml(path / "config.yaml"))
            if (path / "config.yaml").is_file()
            else {},
            played=read_json(path / "report.json", {}),
        )
    made = read_json(ledger_path(path), {}) if path.name.endswith(ENDINGS) else {}
    sources = made.get("sources")
    found = [read_data(str(one), path.parent, depth + 1) for one in sources] if isinstance(sources, list) else []
    return Data(name, path, made=made, sources=tuple(found))


def read_yaml(file: Path) -> dict[str, Any]:
    """A settings file."""
    if not file.exists():
        raise InputError(f"{file}: no such file; is this the folder of a run?")
    return YamlFile.read(file).values


def read_json(file: Path, otherwise: Any) -> Any:
    """The content of a JSON file; `otherwise` if there is no file or it has another type."""
    try:
        found = disk.read_json(file)
    except FileNotFoundError:
        return otherwise
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as JSON: {error}") from None
    return found if isinstance(found, type(otherwise)) else otherwise


def _base_of(adapter: Path) -> str:
    settings = read_json(adapter / "adapter_config.json", {})
    return str(settings.get("base_model_name_or_path") or "")
