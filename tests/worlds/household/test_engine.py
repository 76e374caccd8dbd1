import json
import lzma
import zlib
from pathlib import Path
from typing import Any

import pytest

from bough.worlds.household.engine import GameEngine
from bough.worlds.household.game import Game
from tests.worlds.household.flat import flat, played

RECORDED = Path(__file__).parent / "recorded.jsonl.xz"


def test_every_answer_of_the_real_engine_is_given_here_too(
    official_games: dict[str, Game], transcripts: list[dict[str, Any]]
):
    compared = 0
    for transcript in transcripts:
        engine = GameEngine(official_games[transcript["game"]])
        assert engine.intro == transcript["intro"]
        assert engine.admissible == sorted(transcript["admissible"])
        for number, step in enumerate(transcript["steps"]):
            where = f"{transcript['game']}, step {number}: {step['command']!r}"
            assert engine.step(step["command"])[0] == step["feedback"], where
            assert engine.admissible == sorted(step["admissible"]), where
            assert engine.won == step["won"], where
            compared += 1
    assert compared == 1200


def test_odd_games_are_answered_as_the_real_engine_did():
    """Official games with oddities put in: shared spots, open doors, states, things in two receptacles."""
    steps = 0
    for line in lzma.decompress(RECORDED.read_bytes()).splitlines():
        recorded = json.loads(line)
        engine = GameEngine(Game.from_data(recorded["game"]))
        assert engine.intro == recorded["intro"]
        for command, feedback, admissible, won in recorded["steps"]:
            assert engine.step(command)[0] == feedback, command
            assert zlib.crc32("\n".join(engine.admissible).encode()) == admissible, command
            assert engine.won == won, command
            steps += 1
    assert steps == 1500


def test_every_official_walkthrough_wins(official: dict[str, dict[str, Any]], official_games: dict[str, Game]):
    assert len(official) == 140
    for name, content in official.items():
        engine = GameEngine(official_games[name])
        assert not engine.won, name
        for command in content["walkthrough"]:
            engine.step(command)
        assert engine.won, name


@pytest.mark.parametrize(
    "command", ["", "go to", "fly to the moon", "GO TO SHELF 1", "go to shelf 2", "look.", "go  to shelf 1"]
)
def test_what_means_nothing_changes_nothing(command: str):
    engine = played(flat(), "go to desk 1")
    before = engine.admissible
    assert engine.step(command) == ("Nothing happens.", None)
    assert engine.admissible == before


def test_blanks_around_a_command_do_not_matter():
    assert played(flat()).step("  go to shelf 1\n")[0] == "You arrive at shelf 1. On the shelf 1, you see a mug 1."


def test_a_game_that_is_won_can_be_played_on_and_lost_again():
    engine = played(
        flat(), "go to countertop 1", "take apple 1 from countertop 1", "go to shelf 1", "move apple 1 to shelf 1"
    )
    assert engine.won
    engine.step("take apple 1 from shelf 1")
    assert not engine.won
