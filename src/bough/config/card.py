"""Settings of `bough card` and `bough push`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from bough.config.base import Config

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
LANGUAGE = re.compile(r"[a-z]{2,3}")
LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")


def _hub_id(value: str) -> str:
    if not HUB_ID.fullmatch(value) or len(value) > 96 or "--" in value or ".." in value:
        raise ValueError("names on the Hub are written org/name")
    return value


def _language(value: str) -> str:
    if not LANGUAGE.fullmatch(value):
        raise ValueError("languages are ISO 639 codes such as en")
    return value


def _license(value: str) -> str:
    if not LICENSE.fullmatch(value):
        raise ValueError("licences are the Hub's words for them, such as apache-2.0, mit or other")
    return value


HubId = Annotated[str, AfterValidator(_hub_id)]
RUN = "a recipe's run folder, or that of one training stage"


class CardConfig(Config):
    """Writes the model card (README.md) of what a run has trained, from the files of the run alone."""

    run: Path = Field(description=RUN, json_schema_extra={"positional": True})
    repo: HubId | None = Field(None, description="the adapter's name on the Hub as org/name, for the usage text")
    name: str | None = Field(None, min_length=1, description="the card's title (default: the repo's or the run's name)")
    base_model: HubId | None = Field(
        None, description="the base model's name on the Hub, where the run knows it by a folder only"
    )
    license: Annotated[str, AfterValidator(_license)] | None = Field(
        None, description="the adapter's licence in the Hub's words: apache-2.0, mit, other"
    )
    datasets: list[HubId] = Field([], description="data sets on the Hub that the data came from")
    language: list[Annotated[str, AfterValidator(_language)]] = Field([], description="as ISO 639 codes: en, de")
    evaluations: list[Path] = Field([], description="further results of `bough eval --environment` to report")
    output: Path | None = Field(
        None, description="the file to write (default: README.md beside the weights)", json_schema_extra={"short": "-o"}
    )
    overwrite: bool = Field(False, description="replace a card that is there")


class PushConfig(Config):
    """Uploads what a run has trained, with its card, to the Hub, as whoever `hf auth login` or HF_TOKEN say."""

    run: Path = Field(description=RUN, json_schema_extra={"positional": True})
    repo: HubId = Field(description="where to: org/name; it is made if it is not there")
    private: bool = Field(False, description="make a new repository private")
    base_model: HubId | None = Field(
        None, description="the base model's name on the Hub, where the run knows it by a folder only"
    )
    message: str = Field("Upload with bough push", min_length=1, description="the commit's message")
    dry_run: bool = Field(False, description="list what would be uploaded; upload nothing")
