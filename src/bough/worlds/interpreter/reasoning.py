"""reasoning-gym's generators as problems, and its scorers as graders.

A problem is named by its generator, seed and place; the grader makes it again, in a
sandbox of its own, since a scorer wants the very entry and not what is left of it after
JSON. Generators whose scorers evaluate the text of an answer as code, or take wrong answers
for right ones, are refused.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bough.errors import BoughError, InputError, did_you_mean
from bough.sandbox import view
from bough.sandbox.base import SandboxLimits
from bough.sandbox.pool import Sandbox
from bough.worlds.interpreter import Grade, scoring
from bough.worlds.interpreter.math import last_boxed

TIMEOUT_S = 20.0
LIMITS = SandboxLimits(memory_mb=4096, timeout_s=60, cpu_s=60)
LONGEST = 20_000
WARM_UP = "import reasoning_gym"
BATCH = 200
# Some generators print; only problems go to the pipe, and at last why one could not be made.
MAKER = """
import json, os, sys
from itertools import count
pipe, sys.stdout = sys.stdout, open(os.devnull, "w")
import reasoning_gym
names, seed, size = json.loads(sys.argv[1])
try:
    for batch in count():
        # Entry i of seed s is generated from s + i: batches must not overlap.
        first, sets = (seed * 1_000_003 + batch) * size % (1 << 31), {}
        for name in names:
            sets[name] = reasoning_gym.create_dataset(name, seed=first, size=size)
        for index in range(size):
            for name, entries in sets.items():
                problem = {"problem": entries[index]["question"], "generator": name, "seed": first, "index": index}
                print(json.dumps(problem), file=pipe, flush=True)
except Exception as error:
    print(json.dumps({"generator": name, "failed": f"{type(error).__name__}: {error}"}), file=pipe, flush=True)
"""
PROGRAM = "{scoring}\nimport json\njson.dumps(score(*json.loads({values!r})))"
EVALUATES, FORGIVES = "its scorer evaluates the answer as code", "its scorer takes wrong answers for right ones"
NOT_GRADED = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), EVALUATES),
    **dict.fromkeys(("simple_integration", "intermediate_integration", "polynomial_multiplication"), EVALUATES),
    **dict.fromkeys(("boxnet", "fraction_simplification", "polynomial_equations", "propositional_logic"), FORGIVES),
    **dict.fromkeys(("rubiks_cube", "rush_hour", "time_intervals", "word_sorting"), FORGIVES),
}
# Not possessive, (…)*+, which Python 3.11.2, Debian 12's, matches wrongly; tags end each attempt anyway.
_ANSWER = re.compile(r"<answer>([^<]*(?:<(?!/?answer>)[^<]*)*)</answer>")


def problems(names: list[str], seed: int) -> Iterator[dict[str, Any]]:
    """An endless series of problems, the named generators in turn."""
    if find_spec("reasoning_gym") is None:
        raise InputError("reasoning needs the package reasoning-gym; pip install 'bough[interpreter]'")
    generators = sorted(import_module("reasoning_gym.factory").DATASETS)
    wrong = [f"{name}: {NOT_GRADED[name]}" for name in names if name in NOT_GRADED]
    wrong += [f"{name} is not a generator{did_you_mean(name, generators)}" for name in names if name not in generators]
    if wrong:
        raise InputError("reasoning names generators of reasoning-gym that cannot be used:", wrong)
    # Some generators hang on the order of sets: problems are made as the sandbox will make them again.
    environment = {**os.environ, "PYTHONHASHSEED": view.ENVIRONMENT["PYTHONHASHSEED"]}
    command = [sys.executable, "-P", "-c", MAKER, json.dumps([names, seed, BATCH])]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8") as maker:  # noqa: S603  ours
        assert maker.stdout is not None
        try:
            for line in maker.stdout:
                made = json.loads(line)
                if "failed" in made:
                    raise InputError(f"reasoning-gym makes no problem of {made['generator']}: {made['failed']}")
                yield made
        finally:
            maker.kill()
    raise BoughError(f"reasoning-gym stopped making problems (status {maker.returncode})")


async def grade(answer: str, problem: dict[str, Any], runner: Sandbox, *, timeout_s: float = TIMEOUT_S) -> Grade:
    """The grade by the generator's own scorer."""
    name, given = problem["generator"], final_answer(answer)[:LONGEST]
    details = {"answer": given[:200]}
    if not answer.strip():
        return Grade(0.0, details | {"reason": "no answer"})
    values = json.dumps([name, problem["seed"], problem["index"], BATCH, problem["problem"], given])
    text = Path(scoring.__file__).read_text(encoding="utf-8")
    result = await runner.run(PROGRAM.format(scoring=text, values=values), timeout_s=timeout_s)
    if result.value == "'null'":
        raise InputError(
            f"reasoning-gym makes another problem of {name}, seed {problem['seed']}, index {problem['index']} "
            "than the task has; is it another version?"
        )
    if result.value is None:
        return Grade(0.0, details | {"reason": result.killed or (result.error or "no score").rsplit("\n", 1)[-1]})
    return Grade(float(result.value == "'1.0'"), details)


def final_answer(text: str) -> str:
    """The text in the last answer tags, else in the last box, else all of it."""
    tagged = _ANSWER.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed
