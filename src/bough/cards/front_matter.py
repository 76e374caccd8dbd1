"""The YAML at the top of a card, with the keys that the Hub defines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from bough.cards.base_model import BaseModel
from bough.cards.measured import Measured, shortened
from bough.cards.subject import Subject
from bough.config.card import CardConfig
from bough.plural import plural
from bough.terminal.console import printable


def front_matter(subject: Subject, base: BaseModel, found: Sequence[Measured], title: str, config: CardConfig) -> str:
    """The YAML block between its two lines of dashes."""
    values: dict[str, Any] = {}
    if base.hub_id:
        values["base_model"] = base.hub_id
        values["base_model_relation"] = "adapter" if subject.is_adapter else "finetune"
    values["library_name"] = "peft" if subject.is_adapter else "transformers"
    values["pipeline_tag"] = "text-generation"
    if config.license:
        values["license"] = config.license
    if config.language:
        values["language"] = list(config.language)
    if datasets := all_datasets(subject, config):
        values["datasets"] = datasets
    values["tags"] = _tags(subject, found)
    if results := [_result(group) for group in found if group.own is not None]:
        values["model-index"] = [{"name": _one_line(title), "results": results}]
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000)}---"


def all_datasets(subject: Subject, config: CardConfig) -> list[str]:
    """The data sets on the Hub that it was trained on: those that the stages read and those that the user names."""
    read = [stage.data.hub_id for stage in subject.lineage.stages if stage.data is not None]
    return list(dict.fromkeys([*filter(None, read), *config.datasets]))


def _tags(subject: Subject, found: Sequence[Measured]) -> list[str]:
    verbs = [stage.verb for stage in subject.lineage.stages]
    worlds = [str(shortened(group.settings.environment)).partition(":")[0].removesuffix(".py") for group in found]
    adapter = ["lora"] if subject.is_adapter else []
    return list(dict.fromkeys(["bough", "agent", *adapter, *verbs, *map(_one_line, worlds)]))


def _result(group: Measured) -> dict[str, Any]:
    """One entry of the model index: the success rate of this model with its interval."""
    assert group.own is not None
    settings, found = group.settings, group.reports[group.own]
    world = _one_line(shortened(settings.environment))
    interval = found.success.interval
    sure = f" ({settings.level:.0%} interval {interval.low:.3f} to {interval.high:.3f})" if interval else ""
    metrics = [
        ("success_rate", f"success rate{sure}", found.success.mean),
        ("mean_reward", "mean reward", found.reward.mean),
    ]
    dataset: dict[str, Any] = {"type": world, "name": f"{world}, {plural(found.tasks, 'task')}"}
    if settings.split:
        dataset["split"] = _one_line(settings.split)
    return {
        "task": {"type": "text-generation", "name": "Acting in an environment"},
        "dataset": dataset,
        "metrics": [
            {"type": kind, "name": name, "value": round(value, 4)} for kind, name, value in metrics if value is not None
        ],
    }


def _one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))
