"""Makes a shipped agent of a run: its adapter in 16 bits, its model card, and the settings of its evaluation.

    python -m benchmarks.agents runs/RUN agents/NAME --evaluation unseen

The adapter is the one that the run ends with. `eval.yaml` repeats the evaluation of that name:

    bough eval --config agents/NAME/eval.yaml
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bough.errors import BoughError, InputError, short_path
from bough.evaluation.results import ModelResult
from bough.evaluation.success import report
from bough.experiments.recipe import read_recipe
from bough.experiments.run import Run
from bough.files import read_json
from bough.models.resolve import resolve
from bough.report.card import CardConfig, Subject, find_subject, write_card

ADAPTER, WEIGHTS, CARD, EVALUATION = "adapter_config.json", "adapter_model.safetensors", "README.md", "eval.yaml"
# Settings of the machine that the run was on.
NOT_REPEATED = ("model", "output", "report_to")


def ship(run: Path, folder: Path, evaluation: str, *, license: str = "apache-2.0") -> None:
    """Writes the agent of a finished run into `folder`."""
    subject = find_subject(run, [])
    if not subject.is_adapter:
        raise InputError(f"{subject.weights}: all weights were trained; only an adapter is small enough to be shipped")
    settings = read_json(subject.weights / ADAPTER) | {"base_model_name_or_path": _base(run, subject)}
    repeatable = _evaluation(run, subject, evaluation)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ADAPTER).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    in_16_bits(subject.weights / WEIGHTS, folder / WEIGHTS)
    (folder / EVALUATION).write_text(_settings(folder, repeatable))
    card = folder / CARD
    write_card(CardConfig(run=run, output=card, name=folder.name, license=license, overwrite=True))
    # The tokenizer is the base model's, and is not in this folder.
    card.write_text(
        card.read_text().replace("AutoTokenizer.from_pretrained(adapter)", "AutoTokenizer.from_pretrained(base)")
    )


def _base(run: Path, subject: Subject) -> str:
    """The name of the base model: the recipe's, since an adapter may name a folder of this machine."""
    name, base = read_recipe(run).model, read_json(subject.weights / ADAPTER)["base_model_name_or_path"]
    if Path(name).exists() or base not in (name, str(resolve(name))):
        raise InputError(f"{subject.weights}: its base model is {base}; others need one that has a name")
    return name


def in_16_bits(source: Path, target: Path) -> None:
    """The same tensors in bfloat16, which a GPU computes with in any case."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(source).items()}
    save_file(tensors, target, metadata={"format": "pt"})


@dataclass(frozen=True)
class Repeatable:
    """An evaluation of the run: the name of its stage, its settings, and what it found."""

    name: str
    settings: dict[str, Any]
    result: ModelResult


def _evaluation(run: Path, subject: Subject, name: str) -> Repeatable:
    """The last evaluation of this name that was of the subject's own weights."""
    weights = short_path(subject.weights)
    results = {one.folder.name: one.results.models[-1] for one in subject.evaluations}
    mine = [
        Repeatable(stage.name, given, results[stage.folder])
        for stage, given in Run(read_recipe(run), run).settings()
        if stage.folder in results and results[stage.folder].name.partition("@")[0] == weights
    ]
    found = [one for one in mine if one.name == name]
    if not found:
        known = ", ".join(dict.fromkeys(one.name for one in mine)) or "none"
        raise InputError(f"{run}: there is no evaluation {name!r} of {weights}; there are: {known}")
    return found[-1]


def _settings(folder: Path, one: Repeatable) -> str:
    """The file that repeats an evaluation, with what it found."""
    success = report(one.result.outcomes, lost=one.result.lost).success
    rate = "unknown" if success is None or success.mean is None else f"{success.mean:.1%}"
    settings = {key: value for key, value in one.settings.items() if key not in NOT_REPEATED}
    settings = {"model": folder.as_posix(), **settings, "output": f"runs/{folder.name}-{one.name}"}
    text = yaml.safe_dump(json.loads(json.dumps(settings, default=str)), sort_keys=False, allow_unicode=True)
    found = f"# In the agent's run: {rate} of {len(one.result.outcomes)} episodes."
    return f"# bough eval --config {folder.as_posix()}/{EVALUATION}\n{found}\n{text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--evaluation", default="unseen", help="name of the evaluation to repeat (default: unseen)")
    options = parser.parse_args()
    try:
        ship(options.run, options.folder, options.evaluation)
    except BoughError as error:
        raise SystemExit(f"Error: {error}") from None
    print(f"{sum(file.stat().st_size for file in options.folder.iterdir()) / 1e6:.1f} MB in {options.folder}")


if __name__ == "__main__":
    main()
