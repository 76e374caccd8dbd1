from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.types import ToolCall
from bough.worlds.functions import benchmark, inside
from bough.worlds.functions.back_ends import plain
from bough.worlds.functions.benchmark import entries, entry
from bough.worlds.functions.conversation import Conversation, gold_calls
from tests.worlds.functions import official

# The checks as they run in the sandbox, but in one process for all tasks.
CHECKS = """
import json, sys
sys.path[:0] = sys.argv[1:]
import inside
inside.prepare([])
for line in sys.stdin:
    name, request = json.loads(line)
    print(getattr(inside, name)(json.dumps(request)))
"""


def verdicts(folder: Path, requests: list[tuple[str, dict[str, Any]]]) -> list[str]:
    command = [sys.executable, "-c", CHECKS, str(folder), str(Path(inside.__file__).parent)]
    lines = "\n".join(map(json.dumps, requests))
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def multi_turn(one: benchmark.Entry) -> tuple[str, dict[str, Any]]:
    conversation = Conversation(one)
    gold = [plain(calls) for calls in conversation.gold]
    turns = [[[call] for call in calls] for calls in gold]
    return "check_turns", {"scenario": conversation.scenario, "turns": turns, "gold": gold}


def single_turn(one: benchmark.Entry) -> tuple[str, dict[str, Any]]:
    language = one.set.removeprefix("simple_") if one.set in benchmark.OTHER_LANGUAGES else "python"
    request = {"set": one.set, "language": language, "functions": one.row["function"], "answer": one.answer}
    return "check_calls", request | {"calls": plain(gold_calls(one))}


def test_the_gold_calls_of_all_800_multi_turn_tasks_win(bfcl: Path):
    tasks = [one for name in benchmark.MULTI_TURN for one in entries(name).values()]
    assert len(tasks) == 800 and sum(len(turn) for one in tasks for turn in one.answer) == 4625
    found = verdicts(bfcl, [multi_turn(one) for one in tasks])
    assert [one.id for one, verdict in zip(tasks, found, strict=True) if verdict != "valid"] == []


def test_the_gold_calls_are_those_of_the_benchmark(bfcl: Path):
    """Its unchanged checker compares ours with its own, which it evaluates from their text."""
    # The two other sets have the same calls, but for very few.
    names = ("multi_turn_base", "multi_turn_miss_param")
    tasks = [one for name in names for one in entries(name).values()]
    cases = [
        {"turns": multi_turn(one)[1]["turns"], "gold": one.answer, "row": one.row, "set": one.set} for one in tasks
    ]
    found = official.verdicts(bfcl, cases)
    assert [one.id for one, verdict in zip(tasks, found, strict=True) if verdict != "valid"] == []


def test_the_gold_calls_of_all_single_turn_tasks_win_but_for_those_that_cannot(bfcl: Path):
    names = [name for name in benchmark.SINGLE_TURN if name not in benchmark.RELEVANCE]
    tasks = [one for name in names for one in entries(name).values()]
    assert len(tasks) == 2501
    found = verdicts(bfcl, [single_turn(one) for one in tasks])
    lost = {one.id for one, verdict in zip(tasks, found, strict=True) if verdict != "valid"}
    assert lost == benchmark.UNWINNABLE


@pytest.mark.usefixtures("bfcl")
def test_arguments_that_may_be_left_out_are():
    assert gold_calls(entry("simple_python_0")) == [
        ToolCall(name="calculate_triangle_area", arguments={"base": 10, "height": 5})
    ]
