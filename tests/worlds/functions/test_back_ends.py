from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.sandbox.base import SandboxError
from bough.types import ToolCall
from bough.worlds.functions import back_ends, benchmark, inside
from bough.worlds.functions.back_ends import FileSystem, Folder, changes
from bough.worlds.functions.conversation import Conversation


def scenario(task_id: str) -> dict[str, object]:
    return Conversation(benchmark.entry(task_id)).scenario


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall.model_validate({"name": name, "arguments": arguments})


def test_calls_that_were_already_made_are_played_but_not_told(runner: asyncio.Runner):
    done = [call("cd", folder="document"), call("mkdir", dir_name="temp")]
    told = runner.run(back_ends.results(scenario("multi_turn_base_0"), done, [call("ls")]))
    assert told == ['{"current_directory_content": ["final_report.pdf", "previous_report.pdf", "temp"]}']


def test_of_a_long_result_the_agent_reads_the_beginning(runner: asyncio.Runner):
    text = "x" * (inside.LONGEST_RESULT + 10)
    done = [call("touch", file_name="long.txt"), call("echo", content=text, file_name="long.txt")]
    (told,) = runner.run(back_ends.results(scenario("multi_turn_base_0"), done, [call("cat", file_name="long.txt")]))
    assert told is not None and told.endswith("x … 30 characters left out") and len(told) < len(text) + 30


def test_a_state_that_cannot_be_compared_is_not_the_right_one(runner: asyncio.Runner):
    # A folder that contains itself, through the benchmark's own bugs or a thousand nested ones.
    nested = [step for _ in range(1100) for step in ([call("mkdir", dir_name="d")], [call("cd", folder="d")])]
    verdict = runner.run(back_ends.check_turns(scenario("multi_turn_base_0"), [nested], [[step[0] for step in nested]]))
    assert verdict in ("multi_turn:RecursionError", "check_stopped")


def test_a_fault_of_ours_is_not_the_agents(runner: asyncio.Runner):
    with pytest.raises(SandboxError, match="the benchmark cannot be run: KeyError: 'NoSuchAPI'"):
        runner.run(back_ends.results({"classes": ["NoSuchAPI"], "config": {}}, [], [call("ls")]))


# The calls that turn one file system into another, played on plain dictionaries.


names = st.sampled_from("abcd")
folders: st.SearchStrategy[Folder] = st.recursive(
    st.dictionaries(names, st.sampled_from(["", "one", "two"]), max_size=3),
    lambda inner: st.dictionaries(names, st.sampled_from(["", "one"]) | inner, max_size=4),
    max_leaves=6,
)


@st.composite
def systems(draw: st.DrawFn) -> FileSystem:
    root, path = draw(folders), list[str]()
    folder: Any = root
    while inner := [name for name, content in folder.items() if isinstance(content, dict)]:
        name = draw(st.sampled_from([*inner, None]))
        if name is None:
            break
        path.append(name)
        folder = folder[name]
    return FileSystem(root, tuple(path))


def copied(folder: Folder) -> Folder:
    return {name: copied(one) if isinstance(one, dict) else one for name, one in folder.items()}


def play(system: FileSystem, calls: list[ToolCall]) -> FileSystem:
    """As the benchmark does it: every call acts in the working folder, and what is not there is an error."""
    root, path = copied(system.root), system.path
    for call in calls:
        folder, given = root, call.arguments
        for name in path:
            folder = folder[name]
        match call.name:
            case "cd":
                path = () if given["folder"] == "/" else (*path, given["folder"])
            case "rm":
                del folder[given["file_name"]]
            case "mkdir":
                assert folder.setdefault(given["dir_name"], {}) == {}
            case "touch":
                assert given["file_name"] not in folder
                folder[given["file_name"]] = ""
            case "echo":
                assert isinstance(folder[given["file_name"]], str)
                folder[given["file_name"]] = given["content"]
            case other:
                raise AssertionError(other)
    return FileSystem(root, path)


def listed(folder: Folder) -> list[Any]:
    """With the order of the names, which listings show."""
    return [(name, listed(one) if isinstance(one, dict) else one) for name, one in folder.items()]


@given(systems(), systems())
def test_the_calls_lead_to_the_wanted_state(now: FileSystem, wanted: FileSystem):
    found = play(now, changes(now, wanted))
    assert (listed(found.root), found.path) == (listed(wanted.root), wanted.path)


@given(systems())
def test_nothing_is_called_where_nothing_changed(system: FileSystem):
    assert changes(system, FileSystem(copied(system.root), system.path)) == []


def test_what_is_the_same_is_left_alone():
    now = FileSystem({"a": "one", "b": {"c": "two"}, "d": ""}, ())
    wanted = FileSystem({"a": "one", "b": {"c": "new"}, "d": ""}, ("b",))
    assert [(call.name, *call.arguments.values()) for call in changes(now, wanted)] == [
        ("cd", "/"), ("cd", "b"), ("echo", "new", "c"), ("cd", "/"), ("cd", "/"), ("cd", "b"),
    ]  # fmt: skip
