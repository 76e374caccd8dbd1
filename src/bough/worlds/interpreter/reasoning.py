"""reasoning-gym's generators as problems, and its scorers as graders.

A problem is named by its generator, seed and place; the grader makes it again, in a
sandbox of its own, since a scorer wants the very entry and not what is left of it after
JSON. Nine scorers evaluate the text of an answer as code. They are given an answer only
if it is a literal, or a formula, that does nothing: `EVALUATED` says which.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bough.errors import BoughError, InputError, did_you_mean
from bough.sandbox import view
from bough.sandbox.base import ProgramRunner, SandboxLimits
from bough.worlds.interpreter import literals, scoring
from bough.worlds.interpreter.grade import Grade
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
# The result is marked with a secret of the host, which is not in the process while the answer is scored.
PROGRAM = """
{scoring}
import json
result = json.dumps(score(*json.loads({values!r})))
ask("secret") + result
"""
# What the answers of scorers that evaluate them may be. A formula that is only written
# down, such as Integral(…) or expand(…), is the question and not its answer.
EVALUATED: dict[str, Callable[[str], bool]] = {
    "binary_matrix": literals.is_text_or_literal,
    "n_queens": literals.is_text_or_literal,
    "spiral_matrix": literals.is_text_or_literal,
    "string_insertion": literals.is_text_or_literal,
    "simple_integration": literals.is_expression,
    "intermediate_integration": literals.is_expression,
    "polynomial_multiplication": literals.is_polynomial,
    "countdown": literals.is_arithmetic,
    "puzzle24": lambda text: (literals.arithmetic(text) or (None,))[0] == 24,
}
# Generators whose problems have no one answer that a scorer could ask for.
NOT_GRADED = {"propositional_logic": "a formula such as (P ∨ Q) follows from the premises of most of its problems"}
# Not possessive, (…)*+, which Python 3.11.2, Debian 12's, matches wrongly; tags end each attempt anyway.
_ANSWER = re.compile(r"<answer>([^<]*(?:<(?!/?answer>)[^<]*)*)</answer>")


def problems(names: list[str], seed: int) -> Iterator[dict[str, Any]]:
    """An endless series of problems, the named generators in turn."""
    if refused := [f"{name}: {NOT_GRADED[name]}" for name in names if name in NOT_GRADED]:
        raise InputError("reasoning names generators that pay for the same answer to every problem:", refused)
    generators = _generators()
    if unknown := [name for name in names if name not in generators]:
        raise InputError(
            "reasoning names generators that reasoning-gym does not have:",
            [f"{name}{did_you_mean(name, sorted(generators))}" for name in unknown],
        )
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


async def grade(answer: str, problem: dict[str, Any], runner: ProgramRunner, *, timeout_s: float = TIMEOUT_S) -> Grade:
    """The grade by the generator's own scorer."""
    name, given = problem["generator"], final_answer(answer)[:LONGEST]
    details = {"answer": given[:200]}
    if not answer.strip():  # an empty text in its tags says that an equation has no solution
        return Grade(0.0, details | {"reason": "no answer"})
    if name in EVALUATED and not EVALUATED[name](given):
        return Grade(0.0, details | {"reason": "not an answer that this problem can have"})
    numbers = literals.arithmetic(given) if name in ("countdown", "puzzle24") else None
    place = [name, problem["seed"], problem["index"], BATCH]
    values = json.dumps([*place, problem["problem"], given, numbers and numbers[1]])
    text = Path(scoring.__file__).read_text(encoding="utf-8")
    secret = secrets.token_hex(16)
    untold = [secret]

    async def tell(_: str) -> str:
        return untold.pop() if untold else ""

    program = PROGRAM.format(scoring=text, values=values)
    result = await runner.run(program, timeout_s=timeout_s, answer=tell)
    value = (result.value or "").strip("'")
    if value == f"{secret}null":
        raise InputError(
            f"reasoning-gym makes another problem of {name}, seed {problem['seed']}, index {problem['index']} "
            "than the task has; is it another version?"
        )
    if not value.startswith(secret):
        reason = result.killed or (result.error or "no score").rsplit("\n", 1)[-1]
        return Grade(0.0, details | {"reason": reason})
    score = float(value.removeprefix(secret))
    return Grade(min(1.0, max(0.0, score)) if math.isfinite(score) else 0.0, details)


def final_answer(text: str) -> str:
    """The text in the last answer tags, else in the last box, else all of it."""
    tagged = _ANSWER.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed


def _generators() -> set[str]:
    if find_spec("reasoning_gym") is None:
        raise InputError("reasoning needs the package reasoning-gym; pip install 'bough[interpreter]'")
    return set(import_module("reasoning_gym.factory").DATASETS)
