"""The benchmark's own verdicts: its unchanged checkers, which evaluate calls that are written as text.

A program of its own, run with the folder of the benchmark: it reads cases as JSON from
standard input and writes one verdict for each. Only the module that imports the clients
of every model provider is replaced.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MODEL = "official"


def verdicts(folder: Path, cases: list[dict[str, Any]]) -> list[str]:
    """Runs this file as a program; for the tests."""
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def written(call: dict[str, Any]) -> str:
    """A call as the benchmark writes it for models with native tool calls."""
    return f"{call['name']}({','.join(f'{key}={value!r}' for key, value in call['arguments'].items())})"


def multi_turn(number: int, case: dict[str, Any]) -> str:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    turns = [[[written(call) for call in step] for step in steps] for steps in case["turns"]]
    # The benchmark keeps back ends by the names of model and task.
    found = multi_turn_checker(turns, case["gold"], case["row"], case["set"], f"{MODEL}_{number}")
    return "valid" if found["valid"] else found["error_type"]


def single_turn(case: dict[str, Any]) -> str:
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    calls = [{call["name"]: call["arguments"]} for call in case["calls"]]
    language = Language(case["language"])
    found = ast_checker(case["row"]["function"], calls, case["gold"], language, case["set"], MODEL)
    return "valid" if found["valid"] else found["error_type"]


def main() -> None:
    models: Any = ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {MODEL: SimpleNamespace(underscore_to_dot=True)}
    sys.modules[models.__name__] = models
    sys.path.insert(0, sys.argv[1])
    cases = json.load(sys.stdin)
    print(json.dumps([multi_turn(i, one) if "turns" in one else single_turn(one) for i, one in enumerate(cases)]))


if __name__ == "__main__":
    main()
