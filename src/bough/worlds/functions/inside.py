"""Runs in the sandbox: the benchmark's back ends and its checkers, given plain values.

The benchmark executes a call by evaluating its text. Here a call is a name and a
dictionary of arguments, and nothing that a model wrote is ever evaluated. The checks are
the benchmark's own functions; only the function through which they execute calls is
replaced by `Play.execute`. This file imports nothing of Bough: its text is the warm-up of
the sandbox.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

MODEL = "bough"
# As much of a result as the agent reads; the checks see all of it. The longest of a gold call has 32,000 characters.
LONGEST_RESULT = 90_000
# Names that the benchmark refuses to call.
REFUSED = ("kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run")
EVAL = "bfcl_eval.eval_checker"


def prepare(back_ends: list[str]) -> None:
    """Imports everything in advance."""
    models = ModuleType("bfcl_eval.constants.model_config")
    # The real module imports the clients of all providers. This entry says that dots in names are underscores.
    models.__dict__["MODEL_CONFIG_MAPPING"] = {MODEL: SimpleNamespace(underscore_to_dot=True)}
    sys.modules[models.__name__] = models
    for name in back_ends:
        import_module(f"{EVAL}.multi_turn_eval.func_source_code.{name}")
    for name in ("ast_eval.ast_checker", "multi_turn_eval.multi_turn_checker"):
        import_module(f"{EVAL}.{name}")


class Play:
    """One scenario: back ends for the model's calls, and others for the gold calls."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario = scenario
        self.sides: dict[str, dict[str, Any]] = {}

    def execute(
        self, func_call_list: list[dict[str, Any]], model_name: str, **_: Any
    ) -> tuple[list[str], dict[str, Any]]:
        """The results of calls as text, and the back ends after them; the benchmark's checker calls it too."""
        if model_name not in self.sides:
            config = import_module("bfcl_eval.constants.executable_backend_config")
            made = {}
            for name in self.scenario["classes"]:
                made[name] = getattr(import_module(config.CLASS_FILE_PATH_MAPPING[name]), name)()
                if name not in config.STATELESS_CLASSES:
                    state = copy.deepcopy(self.scenario["config"].get(name, {}))
                    made[name]._load_scenario(state, long_context=self.scenario["long_context"])
            self.sides[model_name] = made
        back_ends = self.sides[model_name]
        return [_execute(back_ends, call) for call in func_call_list], back_ends


def results(text: str, tell: Any) -> None:
    """Plays the calls that were already made, then tells the result of each new one as soon as it is known."""
    request = json.loads(text)
    play = Play(request["scenario"])
    play.execute(request["done"], MODEL)
    for call in request["calls"]:
        (result,), _ = play.execute([call], MODEL)
        left_out = len(result) - LONGEST_RESULT
        tell(result if left_out <= 0 else f"{result[:LONGEST_RESULT]} … {left_out:,} characters left out")


def check_turns(text: str) -> str:
    """The benchmark's verdict on all user turns so far: "valid", or its word for what is wrong."""
    request = json.loads(text)
    play = Play(request["scenario"])
    checker = import_module(f"{EVAL}.multi_turn_eval.multi_turn_checker")
    checker.__dict__["execute_multi_turn_func_call"] = play.execute
    scenario = request["scenario"]
    test = {"id": scenario["id"], "initial_config": scenario["config"], "involved_classes": scenario["classes"]}
    try:
        found = checker.multi_turn_checker(request["turns"], request["gold"], test, scenario["set"], MODEL)
    except Exception as error:  # a state that cannot be compared is not the right one
        return f"multi_turn:{type(error).__name__}"
    return "valid" if found["valid"] is True else str(found["error_type"])


def check_calls(text: str) -> str:
    """The benchmark's verdict on the calls of a single-turn answer."""
    request = json.loads(text)
    language = import_module("bfcl_eval.constants.enums").Language(request["language"])
    checker = import_module(f"{EVAL}.ast_eval.ast_checker")
    written = [{call["name"]: call["arguments"]} for call in request["calls"]]
    try:
        found = checker.ast_checker(request["functions"], written, request["answer"], language, request["set"], MODEL)
    except Exception as error:  # the checker does not expect every value that JSON can hold
        return f"ast_checker:{type(error).__name__}"
    return "valid" if found["valid"] is True else str(found["error_type"])


def _execute(back_ends: dict[str, Any], call: dict[str, Any]) -> str:
    """The result of one call, in the benchmark's words."""
    name = call["name"]
    try:
        if name in REFUSED:
            raise NameError(f"Function call {name} is not allowed.")
        # As in the benchmark, the last back end that has the method is used.
        methods = [dict(inspect.getmembers(one, inspect.ismethod)).get(name) for one in back_ends.values()]
        found = [method for method in methods if method is not None and not name.startswith("_")]
        if not found:
            raise NameError(f"name {name!r} is not defined")
        value = found[-1](**call["arguments"])
        if type(value) is dict:
            try:
                return json.dumps(value)
            except Exception:  # a value that JSON cannot carry
                return str(value)
        return str(value)
    except Exception as error:
        return f"Error during execution: {error}"
