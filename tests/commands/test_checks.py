"""Data and environments, checked before they cost time."""

import bough
from bough.commands.doctor import importable_name
from tests.blocks import ROOT
from tests.commands.letters import CopyLetter

PAIRS = ROOT / "examples" / "household-pairs.jsonl"


def test_the_doctor_counts_tokens_of_records_in_memory_as_of_their_file():
    memory, file = bough.doctor(list(bough.read(PAIRS)), "tiny"), bough.doctor(PAIRS, "tiny")
    assert memory.report == file.report and memory.ok
    assert "tokens trained" in repr(memory)


def test_the_doctor_fails_data_without_a_trained_token():
    start = [bough.Message(role="user", content="hello")]
    turn = bough.Turn(reply=bough.Message(role="assistant", content="hi"), trained=False)
    found = bough.doctor([bough.Trajectory(id="a", task=bough.Task(id="a"), start=start, turns=[turn])], "tiny")
    assert not found.ok and "FAIL" in repr(found)


def test_an_environment_class_is_checked_in_another_process_too():
    assert importable_name(CopyLetter) == "tests.commands.letters:CopyLetter"
    assert bough.check(CopyLetter, tasks=2).problems == []


def test_a_class_inside_a_function_is_checked_in_this_process():
    class Forgetful(CopyLetter):
        async def expert(self) -> str:
            return "7"  # never the letter

    assert importable_name(Forgetful) is None
    [problem] = bough.check(Forgetful, tasks=1).problems
    assert "expert" in problem
