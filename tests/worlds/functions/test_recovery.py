"""The expert of multi-turn tasks after calls that were not asked for."""

from __future__ import annotations

import asyncio
from itertools import islice
from random import Random
from typing import Any

import pytest
from benchmarks.experts import outcome

from bough.chat import tool_calls
from bough.types import Task, ToolCall
from bough.worlds.functions.environment import Functions
from bough.worlds.functions.recovery import inverses

Made = tuple[str, dict[str, Any]]


def reply(*calls: Made) -> str:
    return "\n".join(tool_calls.call_text(ToolCall(name=name, arguments=arguments)) for name, arguments in calls)


async def finish(task: str, *replies: str) -> tuple[list[str], bool | None]:
    """Makes the replies, then the expert's; what the expert said, and whether the task was won."""
    environment, said = Functions(Task(id=task)), list[str]()
    await environment.start()
    try:
        for one in replies:
            assert not (await environment.step(one)).done
        while True:
            said.append(await environment.expert() or "")
            seen = await environment.step(said[-1])
            if seen.done:
                return said, seen.success
    finally:
        await environment.close()


@pytest.mark.parametrize(
    ("task", "wrong", "undone"),
    [
        ("multi_turn_base_0", [("mkdir", {"dir_name": "x"})], [("rmdir", {"dir_name": "x"})]),
        ("multi_turn_base_79", [("pressBrakePedal", {"pedalPosition": 1.0})], [("releaseBrakePedal", {})]),
        # The first user turn of this task has no gold calls: its effects are checked only in later turns.
        (
            "multi_turn_miss_func_127",
            [("trading_logout", {})],
            [("trading_login", {"username": "user", "password": "password"})],
        ),
        # Only who is logged in may remove a stock, and no user is logged in here.
        (
            "multi_turn_base_105",
            [("add_to_watchlist", {"stock": "GOOG"})],
            [
                ("trading_login", {"username": "user", "password": "password"}),
                ("remove_stock_from_watchlist", {"symbol": "GOOG"}),
                ("trading_logout", {}),
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_not_asked_for_is_undone_first(
    runner: asyncio.Runner, task: str, wrong: list[Made], undone: list[Made]
):
    said, success = runner.run(finish(task, reply(*wrong)))
    assert said[0] == reply(*undone)
    assert success


def test_a_call_that_changes_nothing_needs_no_answer(runner: asyncio.Runner):
    clean, _ = runner.run(finish("multi_turn_base_0"))
    said, success = runner.run(finish("multi_turn_base_0", reply(("pwd", {}))))
    assert (said, success) == (clean, True)


def test_a_ticket_without_a_number_is_not_the_one_that_was_closed_without_one():
    config = {"TicketAPI": {"ticket_queue": [{"title": "no number"}, {"id": 7, "title": "seven"}]}}
    assert list(inverses(ToolCall(name="close_ticket", arguments={}), config)) == []
    ((again,),) = inverses(ToolCall(name="close_ticket", arguments={"ticket_id": 7}), config)
    assert again.arguments == {"ticket_id": 7, "updates": {"title": "seven"}}


def test_files_and_folders_become_what_they_were_whatever_led_to_them(runner: asyncio.Runner):
    mess = [
        ("cd", {"folder": "document"}),
        ("mv", {"source": "final_report.pdf", "destination": "x"}),
        ("mkdir", {"dir_name": "y"}),
        ("mv", {"source": "x", "destination": "y"}),
        ("cd", {"folder": "/"}),
        ("rm", {"file_name": "document"}),
    ]
    said, success = runner.run(finish("multi_turn_base_0", *(reply(call) for call in mess)))
    assert success, said


def test_a_call_that_came_too_early_is_undone_and_made_again(runner: asyncio.Runner):
    doors = {"unlock": False, "door": ["driver", "passenger", "rear_left", "rear_right"]}
    said, success = runner.run(finish("multi_turn_miss_param_98", reply(("lockDoors", doors))))
    assert success and '"unlock": true' in said[0], said


def test_what_cannot_be_undone_does_not_stop_the_expert(runner: asyncio.Runner):
    said, success = runner.run(finish("multi_turn_base_79", reply(("fillFuelTank", {"fuelAmount": 1.0}))))
    assert success is False and "lockDoors" in said[0], "it goes on with the calls that are missing"


def test_random_states_are_won_or_lost_for_a_known_reason(runner: asyncio.Runner):
    tasks = islice(Functions.tasks(Functions.Options(), seed=2), 4)
    found = [runner.run(outcome(Functions, task, Random(at)))[0] for at, task in enumerate(tasks)]
    assert all(word == "won" or word.startswith("lost: ") for word in found), found
    assert "won" in found
