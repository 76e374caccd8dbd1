"""reasoning-gym's generators as problems, and its scorers as graders.

A problem is named by its generator, seed and place; the grader makes it again, in the
sandbox, since a scorer wants the very entry and not what is left of it after JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any

from bough.environments.interpreter.grade import Grade
from bough.environments.interpreter.math import last_boxed
from bough.errors import InputError, did_you_mean
from bough.sandbox.base import Runner

TIMEOUT_S = 30.0
WARM_UP = "import reasoning_gym"
BATCH = 200
PROGRAM = """
import json, reasoning_gym
name, seed, index, answer = json.loads({values!r})
entries = reasoning_gym.create_dataset(name, seed=seed, size={batch})
json.dumps(float(entries.score_answer(answer, entries[index])))
"""
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL)


def problems(names: list[str], seed: int) -> Iterator[dict[str, Any]]:
    """Problems of the named generators in turn, without end."""
    generators = _generators()
    if unknown := [name for name in names if name not in generators]:
        raise InputError(
            "reasoning names generators that reasoning-gym does not have:",
            [f"{name}{did_you_mean(name, sorted(generators))}" for name in unknown],
        )
    create: Any = import_module("reasoning_gym").create_dataset
    for batch in count():
        # Entry i of seed s is drawn with s + i: batches must not overlap.
        first = (seed * 1_000_003 + batch) * BATCH % (1 << 31)
        sets = {name: create(name, seed=first, size=BATCH) for name in names}
        for index in range(BATCH):
            for name, entries in sets.items():
                question = entries[index]["question"]
                yield {"problem": question, "generator": name, "seed": first, "index": index}


async def grade(answer: str, problem: dict[str, Any], runner: Runner) -> Grade:
    """What the generator's own scorer says."""
    given = final_answer(answer)
    values = json.dumps([problem["generator"], problem["seed"], problem["index"], given[:20_000]])
    result = await runner.run(PROGRAM.format(values=values, batch=BATCH), timeout_s=TIMEOUT_S)
    try:
        score = float((result.value or "").strip("'"))
    except ValueError:
        reason = result.killed or (result.error or "").rsplit("\n", 1)[-1]
        return Grade(0.0, {"answer": given[:200], "reason": reason})
    return Grade(min(1.0, max(0.0, score)), {"answer": given[:200]})


def final_answer(text: str) -> str:
    """What stands in the last answer tags, else in the last box, else all of it."""
    tagged = _ANSWER.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed


def _generators() -> set[str]:
    if find_spec("reasoning_gym") is None:
        raise InputError("reasoning needs the package reasoning-gym; pip install 'bough[interpreter]'")
    return set(import_module("reasoning_gym.factory").DATASETS)
