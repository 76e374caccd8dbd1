"""`bough.merge`, `bough.card`, `bough.push`: what is done with trained weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bough.api.inputs import StrPath
from bough.api.models import ModelLike, TrainedModel, model_name
from bough.api.settings import make_config, settings_of
from bough.cards.card import Card, write_card
from bough.cards.release import make_release
from bough.cards.subject import find_subject
from bough.cards.upload import upload
from bough.config.card import CardConfig, PushConfig
from bough.config.merge import MergeConfig
from bough.policy.merge import merge_adapter


@settings_of(MergeConfig, "model")
def merge(adapter: StrPath, output: StrPath, *, base_model: ModelLike | None = None, **settings: Any) -> Path:
    """Write an adapter into its base model: a folder, or a file for llama.cpp where the name ends in .gguf.

    `adapter` is a trained model or an adapter's folder, `base_model` the model it was
    trained on where the adapter does not name it. Returns the path of the new model.
    """
    base = None if base_model is None else model_name(base_model)
    config = make_config(MergeConfig, "merge", settings, adapter=Path(adapter), output=Path(output), model=base)
    merge_adapter(config)
    return config.output


@settings_of(CardConfig)
def card(run: TrainedModel | StrPath, **settings: Any) -> Card:
    """Write the model card of what a run has trained; returns its text, its path and what is missing in it.

    `run` is a run folder, or what a training function returned.
    """
    return write_card(make_config(CardConfig, "card", settings, run=_run_folder(run)))


@settings_of(PushConfig)
def push(run: TrainedModel | StrPath, repo: str, **settings: Any) -> str:
    """Upload weights and card to the Hugging Face Hub as `repo`, org/name; returns the address of the commit."""
    config = make_config(PushConfig, "push", settings, run=_run_folder(run), repo=repo)
    release = make_release(find_subject(config.run, []), config.base_model)
    return upload(release, config.repo, private=config.private, message=config.message)


def _run_folder(run: TrainedModel | StrPath) -> Path:
    return run.path.parent if isinstance(run, TrainedModel) else Path(run)
