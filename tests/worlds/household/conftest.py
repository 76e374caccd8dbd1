"""The official games and what the real engine answered on some of them, where the shared data is at hand."""

import json
import lzma
import tarfile
from typing import Any

import pytest

from bough.worlds.household.game import Game, parse
from tests.shared_data import shared_data


@pytest.fixture(scope="session")
def official() -> dict[str, dict[str, Any]]:
    """The contents of the 140 official valid_seen games, by task and trial."""
    with tarfile.open(shared_data("alfworld/games-valid_seen.tar.xz")) as archive:
        return {
            member.name.split("/", 1)[1]: json.load(archive.extractfile(member))
            for member in archive
            if member.name.endswith("game.tw-pddl")
        }


@pytest.fixture(scope="session")
def official_games(official: dict[str, dict[str, Any]]) -> dict[str, Game]:
    """The same, read."""
    return {name: parse(content) for name, content in official.items()}


@pytest.fixture(scope="session")
def transcripts() -> list[dict[str, Any]]:
    """Games played in the real engine."""
    with lzma.open(shared_data("alfworld/transcripts.jsonl.xz"), "rt") as lines:
        return [json.loads(line) for line in lines]
