from __future__ import annotations

import socket
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bough.errors import BoughError, InputError
from bough.worlds.functions import benchmark
from bough.worlds.functions.benchmark import UNWINNABLE, entries, entry, sets_named, tool, tools


def test_all_tasks_are_there(bfcl: Path):
    sizes = {name: len(entries(name)) for name in benchmark.SETS}
    assert [sizes[name] for name in benchmark.MULTI_TURN] == [200, 200, 200, 200]
    assert [sizes[name] for name in benchmark.PYTHON] == [400, 200, 200, 200]
    assert [sizes[name] for name in benchmark.LIVE] == [258, 1053, 16, 24]
    assert [sizes[name] for name in benchmark.RELEVANCE] == [240, 884, 16]
    assert [sizes[name] for name in benchmark.OTHER_LANGUAGES] == [100, 50]
    assert all(entry(task_id).id == task_id for task_id in UNWINNABLE)


def test_only_the_files_that_are_used_are_unpacked_and_any_user_can_read_them(bfcl: Path):
    found = {path.relative_to(bfcl).as_posix() for path in bfcl.rglob("*") if path.is_file()}
    assert {path for path in found if "__pycache__" not in path} == set(benchmark.FILES)
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in bfcl.rglob("*"))


def test_once_unpacked_it_is_served_with_no_network_and_no_other_program(bfcl: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("touched the outside")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert benchmark.local_folder() == bfcl


def test_another_wheel_is_refused_with_both_hashes_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path))
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / benchmark.WHEEL.file, "w") as archive:
        for name in benchmark.FILES:
            archive.writestr(name, "{}")
    with pytest.raises(BoughError) as refused:
        benchmark.local_folder()
    message = str(refused.value)
    assert benchmark.WHEEL.sha256 in message and "pip download --no-deps bfcl-eval==2026.3.23" in message
    assert [path.name for path in (tmp_path / "functions").iterdir() if not path.name.endswith(".lock")] == []


def test_sets_are_named_alone_or_together():
    assert sets_named(["live_simple", "multi_turn_base"]) == ["multi_turn_base", "live_simple"]
    assert sets_named(["multi_turn"]) == list(benchmark.MULTI_TURN)
    assert sets_named(["single_turn", "simple_java"]) == list(benchmark.SINGLE_TURN)
    with pytest.raises(InputError, match="multi_turn_bass; did you mean multi_turn_base"):
        sets_named(["multi_turn_bass"])


@pytest.mark.usefixtures("bfcl")
@pytest.mark.parametrize("task_id", ["", "multi_turn_base_200", "multi_turn_base", "web_search_0", "../x_1"])
def test_a_task_that_does_not_exist_is_the_users_mistake(task_id: str):
    with pytest.raises(InputError, match="BFCL has no such task"):
        entry(task_id)


@pytest.mark.usefixtures("bfcl")
def test_related_tasks_are_one_family():
    variants = {entry(f"{name}_17").family for name in benchmark.MULTI_TURN}
    assert len(variants) == 1 and entry("multi_turn_base_18").family not in variants
    assert entry("live_simple_0-0-0").family != entry("live_simple_2-2-0").family
    same = [one for one in entries("live_simple").values() if one.id.split("-")[1] == "3"]
    assert len(same) > 5 and len({one.family for one in same}) == 1


def function(**properties: Any) -> dict[str, Any]:
    parameters = {"type": "dict", "properties": properties, "required": [*properties][:1]}
    return {"name": "math.area", "description": "Area.", "parameters": parameters, "response": {"type": "dict"}}


def test_a_function_becomes_a_tool_of_plain_json_types():
    side = {"type": "float", "description": "In cm.", "default": 1.5}
    made = tool(function(side=side, exact={"type": "boolean"}), "simple_python")
    assert made == {
        "type": "function",
        "function": {
            "name": "math_area",
            "description": "Area. Note that the provided function is in Python 3 syntax.",
            "parameters": {
                "type": "object",
                "properties": {
                    "side": {"type": "number", "description": "In cm. This is a float type value.", "default": 1.5},
                    "exact": {"type": "boolean"},
                },
                "required": ["side"],
            },
        },
    }


def test_nested_types_are_translated_too():
    point = {"type": "dict", "properties": {"x": {"type": "float"}}, "required": ["x"]}
    given = function(points={"type": "tuple", "items": point}, kind={"type": "any", "enum": ["a"]}, other={})
    properties = tool(given, "multiple")["function"]["parameters"]["properties"]
    assert properties["points"]["type"] == "array"
    assert properties["points"]["items"]["type"] == "object" and properties["points"]["items"]["required"] == ["x"]
    assert properties["points"]["items"]["properties"]["x"]["type"] == "number"
    assert properties["kind"] == {"type": "string", "enum": ["a"]} and properties["other"] == {"type": "string"}


def test_values_of_other_languages_are_strings_that_name_their_type():
    given = function(ids={"type": "ArrayList", "items": {"type": "long"}, "description": "Ids."}, x={"type": "any"})
    (made,) = tools([given], "simple_java")
    assert made["function"]["description"].endswith("in Java 8 SDK syntax.")
    assert made["function"]["parameters"]["properties"] == {
        "ids": {
            "type": "string",
            "description": "Ids. This is Java ArrayList type parameter in string representation. "
            "The list elements are of type long; they are not in string representation.",
        },
        "x": {
            "type": "string",
            "description": "This parameter can be of any type of Java object in string representation.",
        },
    }
    options = {"type": "dict", "properties": {"passive": {"type": "Boolean"}}}
    (made,) = tools([function(options=options)], "simple_javascript")
    description = made["function"]["parameters"]["properties"]["options"]["description"]
    assert "JavaScript dict type" in description and '{"passive": {"type": "Boolean"}}' in description
