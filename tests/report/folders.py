"""Run folders written by hand: what training, curation and evaluation leave, without the hours."""

import json
import shutil
from pathlib import Path
from typing import Any

from bough.config.groups import CollectConfig
from bough.evaluation.results import ModelResult, Results
from bough.experiments.record import StageRecord
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig
from bough.models.resolve import resolve
from tests.evaluation.samples import binary, result

CONFIGS = {"sft": SFTConfig, "dpo": DPOConfig, "grpo": GRPOConfig}


def stage(folder: Path, verb: str, *, model: str = "smollm2", kept: int = 7, **settings: Any) -> Path:
    """A training stage that has come to its end; its weights are no weights, but its tokenizer is one."""
    if verb != "grpo" or "environment" not in settings:
        settings = {"train_file": "data.jsonl"} | settings
    config = CONFIGS[verb](model=model, output_dir=folder, **settings)
    final = folder / "final"
    final.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.to_yaml())
    ledger = {"item": "rows", "in": kept + 2, "kept": kept, "dropped": {"too_long": 2}}
    (folder / "ledger.json").write_text(json.dumps([ledger]))
    (folder / "report.json").write_text(json.dumps({"step": 12, "tokens_trained": 3456}))
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 12, "loss": 1.25}\n')
    base = {"base_model_name_or_path": str(Path.home() / "cache/base"), "peft_version": "0.21.0", "r": 16}
    (final / "adapter_config.json").write_text(json.dumps(base))
    (final / "adapter_model.safetensors").write_bytes(b"weights")
    tiny = Path(resolve("tiny"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tiny / name).exists():
            shutil.copy(tiny / name, final / name)
    return folder


def collection(folder: Path, **settings: Any) -> Path:
    """A folder of `bough collect`, without its episodes."""
    folder.mkdir(parents=True)
    config = CollectConfig(**({"environment": "household", "output": folder, "model": "expert"} | settings))
    (folder / "config.yaml").write_text(config.to_yaml())
    report = {"episodes": 40, "success_rate": 0.925, "stops": {"terminated": 37, "max_turns": 3}}
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "trajectories.jsonl").write_text("")
    return folder


def pairs(file: Path, sources: list[Path], reasons: dict[str, int]) -> Path:
    """What `bough pairs` leaves, without the pairs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    ledger = {"item": "mistakes", "in": 50, "kept": 30, "dropped": {"nobody_knows_better": 20}}
    content = {"ledgers": [ledger], "sources": [str(source) for source in sources], "reasons": reasons}
    file.with_name("pairs.ledger.json").write_text(json.dumps(content))
    return file


def evaluation(folder: Path, models: dict[str, str], *, goes_on_with: str | None = None, **more: Any) -> Path:
    """Results in a world: a name and a string of 1 (solved) and 0 for each model. A run may go on with another."""
    folder.mkdir(parents=True, exist_ok=True)
    results: list[ModelResult] = [result(name, binary(solved), turns=3) for name, solved in models.items()]
    values = {"environment": "household", "split": "unseen", "seed": 0} | more
    Results(**values, models=results).write(folder / "results.json")
    record = StageRecord.read(folder)
    if record is not None:
        record.goes_on_with = goes_on_with
        record.write(folder)
    return folder


def recipe(folder: Path, *stages: dict[str, Any], **more: Any) -> Path:
    """The recipe of a run, every stage of which is noted as finished."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(json.dumps({"name": "made", "stages": list(stages)} | more))
    for number, entry in enumerate(stages, 1):
        [(verb, settings)] = entry.items()
        name = settings.get("name", verb)
        here = folder / f"{number:02}-{name}"
        here.mkdir(exist_ok=True)
        StageRecord(verb, name, 1, "same", {}, finished=True).write(here)
    return folder
