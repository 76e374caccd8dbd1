"""`bough.play`: the same episodes as the command plays, as objects."""

import asyncio
from typing import Any

import pytest

import bough
from tests.environments.worlds import Counting


def test_actions_give_the_start_and_one_observation_each():
    seen = bough.play(Counting, ["1", "x", "2"])
    assert [observation.error for observation in seen] == [None, None, "malformed", None]
    assert seen[0].text.endswith("To 2. Begin with 1.") and seen[-1].success is True


def test_settings_are_those_of_the_command_and_a_running_loop_is_no_obstacle():
    async def in_a_notebook() -> Any:
        return bough.play(Counting, [], task="2")

    [start] = asyncio.run(in_a_notebook())
    assert "To 4." in start.text
    with pytest.raises(bough.InputError, match="--task nine: no task has that number or id"):
        bough.play(Counting, [], task="nine")


def test_one_text_is_not_a_list_of_actions():
    with pytest.raises(bough.InputError, match="actions are a list of texts"):
        bough.play(Counting, "12")
