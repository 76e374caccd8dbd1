"""The benchmark as data: the wheel of `bfcl-eval`, unpacked into the cache, and the tasks in it.

The package is never installed: it pins old versions of common packages and asks for the
clients of every model provider. Of its code, only what `FILES` names is unpacked.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bough.errors import InputError, did_you_mean
from bough.files import Wheel, build_once

VERSION = "2026.3.23"
WHEEL = Wheel(
    f"bfcl-eval=={VERSION}",
    f"bfcl_eval-{VERSION}-py3-none-any.whl",
    "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
)
BACK_ENDS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
MULTI_TURN = tuple(f"multi_turn_{kind}" for kind in ("base", "miss_func", "miss_param", "long_context"))
PYTHON = ("simple_python", "multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
RELEVANCE = ("irrelevance", "live_irrelevance", "live_relevance")
OTHER_LANGUAGES = ("simple_java", "simple_javascript")
SINGLE_TURN = (*PYTHON, *LIVE, *RELEVANCE, *OTHER_LANGUAGES)
SETS = (*MULTI_TURN, *SINGLE_TURN)
# Names for several sets at once.
COLLECTIONS = {"multi_turn": MULTI_TURN, "single_turn": SINGLE_TURN}
# Tasks whose right answers the benchmark's own checker refuses: a required argument without an accepted value, an
# argument that the function does not have, numbers in a list that is read as strings, a text in place of a list.
UNWINNABLE = frozenset(
    (
        "live_simple_106-63-0",
        "live_simple_112-68-0",
        "live_multiple_862-181-3",
        "live_multiple_964-207-0",
        "simple_java_36",
        "simple_java_64",
        "simple_java_65",
    )
)

_DATA, _EVAL, _CONSTANTS = "bfcl_eval/data", "bfcl_eval/eval_checker", "bfcl_eval/constants"
FILES = (
    *(f"{_DATA}/BFCL_v4_{name}.json" for name in SETS),
    *(f"{_DATA}/possible_answer/BFCL_v4_{name}.json" for name in SETS if name not in RELEVANCE),
    *(f"{_DATA}/multi_turn_func_doc/{name}.json" for name in BACK_ENDS.values()),
    *(f"{_EVAL}/multi_turn_eval/func_source_code/{name}.py" for name in (*BACK_ENDS.values(), "long_context")),
    *(f"{_EVAL}/multi_turn_eval/{name}.py" for name in ("multi_turn_checker", "multi_turn_utils")),
    f"{_EVAL}/ast_eval/ast_checker.py",
    *(f"{_EVAL}/ast_eval/type_convertor/{name}_type_converter.py" for name in ("java", "js")),
    *(f"{_CONSTANTS}/{name}.py" for name in ("enums", "executable_backend_config", "type_mappings")),
)


@dataclass(frozen=True)
class Entry:
    """One task as the benchmark's files have it. `answer` is the gold: calls per user turn, or accepted arguments."""

    id: str
    set: str
    row: dict[str, Any]
    answer: list[Any]

    @property
    def multi_turn(self) -> bool:
        return self.set in MULTI_TURN

    @property
    def family(self) -> str:
        """What related tasks have in common; they are always in the same split.

        The four multi-turn sets are variants of the same scenarios; single-turn tasks are
        related if they offer the same functions.
        """
        if self.multi_turn:
            return f"multi_turn {self.id.rpartition('_')[2]}"
        return " ".join(sorted(function["name"] for function in self.row["function"]))


def local_folder() -> Path:
    """The unpacked files; fetched on first use, with no network touched after that."""
    return build_once(f"functions/bfcl-eval-{VERSION}", _build)


def _build(folder: Path) -> None:
    scratch = folder / "scratch"
    scratch.mkdir()
    wheel = WHEEL.fetch(scratch, "the benchmark BFCL")
    WHEEL.check(wheel)
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            archive.extract(name, folder)
    if wheel.parent == scratch:
        wheel.unlink()
    scratch.rmdir()
    # Programs in a sandbox run as another user, whatever our umask is.
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def sets_named(names: list[str]) -> list[str]:
    """The sets of these names, in the benchmark's order. Raises InputError for a name that does not exist."""
    known = [*COLLECTIONS, *SETS]
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            "sets contains names that the benchmark does not have:",
            [f"{name}{did_you_mean(name, known)}" for name in unknown],
        )
    wanted = {one for name in names for one in COLLECTIONS.get(name, (name,))}
    return [name for name in SETS if name in wanted]


def entry(task_id: str) -> Entry:
    """The task of that id. Raises InputError if there is none."""
    name = task_id.rpartition("_")[0]
    found = entries(name).get(task_id) if name in SETS else None
    if found is None:
        raise InputError(f"task {task_id!r:.80}: BFCL has no such task; an example is multi_turn_base_0")
    return found


@cache
def entries(name: str) -> dict[str, Entry]:
    """The tasks of a set by id."""
    file = f"BFCL_v4_{name}.json"
    gold = [] if name in RELEVANCE else _rows(f"possible_answer/{file}")
    answers = {row["id"]: row["ground_truth"] for row in gold}
    return {row["id"]: Entry(row["id"], name, row, answers.get(row["id"], [])) for row in _rows(file)}


@cache
def documentation(back_end: str) -> tuple[dict[str, Any], ...]:
    """The descriptions of a back end's functions."""
    return tuple(_rows(f"multi_turn_func_doc/{BACK_ENDS[back_end]}.json"))


def _rows(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (local_folder() / _DATA / file).read_bytes().splitlines()]


# From the benchmark's descriptions of functions to the JSON schemas that chat templates and servers take.
# Types are translated as the benchmark does it for models with native tool calls. The schemas of return values are
# left out: they are a third of the prompt.

# As in the benchmark; any other type becomes a string.
TYPES = {
    **dict.fromkeys(("integer", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
}
KEPT = ("description", "enum", "default")
LANGUAGES = {"simple_java": ("Java 8 SDK", "Java"), "simple_javascript": ("JavaScript", "JavaScript")}


def tools(functions: Iterable[Mapping[str, Any]], set_name: str) -> tuple[dict[str, Any], ...]:
    """The functions that a task offers, as tools."""
    return tuple(tool(function, set_name) for function in functions)


def tool(function: Mapping[str, Any], set_name: str) -> dict[str, Any]:
    """One function as a tool."""
    syntax, language = LANGUAGES.get(set_name, ("Python 3", None))
    given = function["parameters"]
    properties = {
        name: _parameter(schema) if language is None else _text_parameter(schema, language)
        for name, schema in given["properties"].items()
    }
    described = {
        "name": tool_name(function["name"]),
        "description": f"{function['description']} Note that the provided function is in {syntax} syntax.",
        "parameters": {"type": "object", "properties": properties, "required": list(given.get("required", []))},
    }
    return {"type": "function", "function": described}


def tool_name(name: str) -> str:
    """The function's name; servers allow no dots in it."""
    return name.replace(".", "_")


def _parameter(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter of a Python function; nested types likewise."""
    named = schema.get("type", "string")
    found: dict[str, Any] = {"type": TYPES.get(named, "string")}
    found |= {key: schema[key] for key in KEPT if key in schema}
    if named == "float":
        found["description"] = f"{found.get('description', '')} This is a float type value.".strip()
    if found["type"] == "object" and "properties" in schema:
        found["properties"] = {name: _parameter(one) for name, one in schema["properties"].items()}
        if "required" in schema:
            found["required"] = schema["required"]
    elif found["type"] == "array" and "items" in schema:
        found["items"] = _parameter(schema["items"])
    return found


def _text_parameter(schema: Mapping[str, Any], language: str) -> dict[str, Any]:
    """A parameter of a function in another language: its value is written in that language, as a string."""
    named = schema["type"]
    kind = f"any type of {language} object" if named == "any" else None
    note = f"This parameter can be of {kind} in string representation." if kind else ""
    note = note or f"This is {language} {named} type parameter in string representation."
    if "items" in schema:
        note += f" The list elements are of type {schema['items']['type']}; they are not in string representation."
    if named == "dict" and "properties" in schema:
        fields = json.dumps(schema["properties"])
        note += f" The dictionary entries have the following schema; they are not in string representation. {fields}"
    return {"type": "string", "description": f"{schema.get('description', '')} {note}".strip()}


# Values written in Java and JavaScript, in the forms that the benchmark's checker reads.

SUFFIXES = {("simple_java", "long"): "L", ("simple_java", "float"): "f", ("simple_javascript", "Bigint"): "n"}


def written(value: Any, schema: Mapping[str, Any], set_name: str) -> str:
    """A value of a parameter's type as code."""
    kind = schema["type"]
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{value}{SUFFIXES.get((set_name, kind), '')}"
    if set_name == "simple_javascript":
        return _javascript(value)
    if isinstance(value, dict):
        puts = " ".join(f"put({json.dumps(key)}, {json.dumps(one)});" for key, one in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    item = schema["items"]["type"]
    if kind == "ArrayList":
        suffix = SUFFIXES.get(("simple_java", item), "")
        items = (one if isinstance(one, str) and item == "any" else json.dumps(one) + suffix for one in value)
        return f"new ArrayList<>(Arrays.asList({', '.join(items)}))"
    # The checker takes the elements of an array as they are, quotes included.
    return f"new {item}[]{{{', '.join(map(str, value))}}}"


def _javascript(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_javascript(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_javascript, value)) + "]"
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)
