"""Settings of `bough card` and `bough push`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from bough.config.groups import ReportConfig

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
LANGUAGE = re.compile(r"[a-z]{2,3}")
LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")


def _hub_id(value: str) -> str:
    if not HUB_ID.fullmatch(value) or len(value) > 96 or "--" in value or ".." in value:
        raise ValueError("a name on the Hub is written org/name")
    return value


def _language(value: str) -> str:
    if not LANGUAGE.fullmatch(value):
        raise ValueError("a language is an ISO 639 code such as en")
    return value


def _license(value: str) -> str:
    if not LICENSE.fullmatch(value):
        raise ValueError("a license is one of the Hub's identifiers, such as apache-2.0, mit or other")
    return value


HubId = Annotated[str, AfterValidator(_hub_id)]
RUN = "the run folder of a recipe or of one training stage"


class CardConfig(ReportConfig):
    """Writes the model card (README.md) of a trained model, from the files of its run alone."""

    run: Path = Field(description=RUN, json_schema_extra={"positional": True})
    repo: HubId | None = Field(None, description="the adapter's name on the Hub, org/name, for the usage example")
    name: str | None = Field(
        None, min_length=1, description="title of the card (default: the name of the repo or the run)"
    )
    base_model: HubId | None = Field(
        None, description="the base model's name on the Hub, if the run only has it as a local folder"
    )
    license: Annotated[str, AfterValidator(_license)] | None = Field(
        None, description="license of the adapter, as a Hub identifier: apache-2.0, mit, other"
    )
    datasets: list[HubId] = Field([], description="datasets on the Hub that the training data came from")
    language: list[Annotated[str, AfterValidator(_language)]] = Field(
        [], description="languages as ISO 639 codes: en, de"
    )
    evaluations: list[Path] = Field([], description="more results of `bough eval --environment` to report")
    output: Path | None = Field(
        None,
        description="the file to write (default: README.md in the folder of the weights)",
        json_schema_extra={"short": "-o"},
    )
    overwrite: bool = Field(False, description="replace an existing card")


class PushConfig(ReportConfig):
    """Uploads a trained model and its card to the Hub, with the account of `hf auth login` or HF_TOKEN."""

    run: Path = Field(description=RUN, json_schema_extra={"positional": True})
    repo: HubId = Field(description="the repository, org/name; it is created if it does not exist")
    private: bool = Field(False, description="create the repository as private")
    base_model: HubId | None = Field(
        None, description="the base model's name on the Hub, if the run only has it as a local folder"
    )
    message: str = Field("Upload with bough push", min_length=1, description="commit message")
    dry_run: bool = Field(False, description="list the files that would be uploaded; upload nothing")


# Settings of `bough merge`.


class MergeConfig(ReportConfig):
    """Merges an adapter into its base model and writes the result as a model of its own."""

    adapter: Path = Field(description="the folder of the adapter", json_schema_extra={"positional": True})
    output: Path = Field(
        description="the folder to write, or a file that ends in .gguf, for llama.cpp",
        json_schema_extra={"short": "-o"},
    )
    gguf_type: Literal["f32", "f16", "bf16", "q8_0"] | None = Field(
        None, description="data type of the weights in a GGUF file (default: f16)"
    )
    model: str | None = Field(None, description="the base model (default: the one named in the adapter)")

    @property
    def is_gguf(self) -> bool:
        """Whether the output is one GGUF file."""
        return self.output.suffix == ".gguf"

    @model_validator(mode="after")
    def _a_type_needs_its_file(self) -> Self:
        if self.gguf_type and not self.is_gguf:
            raise ValueError(f"`gguf_type` needs an `output` that ends in .gguf; it is {self.output}")
        return self
