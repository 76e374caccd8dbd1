"""How many small mistakes the tests notice: mutants of the modules whose numbers everything rests on.

    python -m benchmarks.mutation --jobs 2 > benchmarks/results/mutation.md

Each mutant is one change (a comparison, a sign, a constant, min for max, a dropped abs or
detach, …) in a copy of the repository; the module's tests run against it until the first
failure. The sample is the same for the same seed.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from benchmarks.equivalent_mutants import reason
from benchmarks.mutants import Mutant, mutants
from benchmarks.mutation_trials import ROOT, Trial, copies_of_repository, run_trials

HYBRIDS = [
    "tests/policy/test_hybrids.py::test_forks_within_one_convolution_give_the_same",
    "tests/policy/test_hybrids.py::test_chunks_and_segments_have_different_lengths",
]
# The tests that must notice a mistake in each module, the fastest first.
MODULES = {
    "curation/advantages": [
        "tests/curation/test_advantages.py",
        "tests/curation/test_state_credit.py",
        "tests/methods/test_grpo_examples.py",
    ],
    "training/method": [f"tests/methods/test_{name}.py" for name in ("base", "examples", "example_store")],
    "methods/distill": ["tests/methods/test_distill.py", "tests/online/test_distill.py"],
    "methods/dpo": ["tests/methods/test_dpo.py", "tests/methods/test_base.py"],
    "methods/grpo": [
        *(f"tests/methods/test_{name}.py" for name in ("surrogate", "grpo", "grpo_examples")),
        "tests/curation/test_state_credit.py",
    ],
    "methods/kto": ["tests/methods/test_kto.py", "tests/methods/test_base.py"],
    "methods/sft": [f"tests/methods/test_{name}.py" for name in ("sft", "base", "call_source")],
    "trees/build": [f"tests/trees/test_{name}.py" for name in ("build", "pack", "forest")],
    "trees/attend": ["tests/trees/test_attend.py"],
    "trees/recurrent": ["tests/trees/test_recurrent.py"],
    "trees/mixers": ["tests/trees/test_mixers.py", *HYBRIDS],
    "evaluation/intervals": ["tests/evaluation/test_intervals.py", "tests/evaluation/test_paired.py"],
    "evaluation/gate": ["tests/evaluation/test_gate.py"],
    "evaluation/comparison": ["tests/evaluation/test_comparison.py"],
    "evaluation/success": ["tests/evaluation/test_success.py"],
    "evaluation/results": ["tests/evaluation/test_outcomes.py"],
}
# What tests and package take longest to load. The package itself is loaded by each test process, from its copy.
PRELOADED = (
    "torch", "transformers", "transformers.modeling_layers", "peft", "pydantic", "rich.progress", "scipy.stats",
    "statsmodels.api", "hypothesis.strategies", "hypothesis.extra.numpy", "_hypothesis_pytestplugin", "xdist.plugin",
    "pytest_timeout", "pytest",
)  # fmt: skip
FATES = ("killed", "timed out", "survived", "equivalent", "not tried")


@cache
def known_mutants(module: str) -> list[Mutant]:
    return mutants((ROOT / "src" / "bough" / f"{module}.py").read_text(encoding="utf-8"))


def sample(module: str, count: int, seed: int) -> list[Trial]:
    known = known_mutants(module)
    chosen = random.Random(f"{seed} {module}").sample(known, min(count, len(known)))
    return [Trial(module, MODULES[module], mutant) for mutant in chosen]


def measure(modules: list[str], copies: list[Path], end: float) -> dict[str, float]:
    """The CPU seconds of each module's tests, which must pass while nothing is changed."""
    found = {}
    for trial in run_trials([Trial(module, MODULES[module]) for module in modules], copies, end):
        if trial.fate == "not tried":
            sys.exit(
                "the time limit passed before all tests had been run without a mutant; give --limit-s more seconds"
            )
        if trial.fate != "survived":
            sys.exit(f"{trial.module} has no mutants yet, and its tests are {trial.fate}:\n{trial.output[-4000:]}")
        found[trial.module] = trial.cpu_s
    return found


def try_mutants(trials: list[Trial], copies: list[Path], end: float) -> None:
    for done, trial in enumerate(run_trials(trials, copies, end), 1):
        assert trial.mutant is not None
        if trial.fate == "survived" and reason(trial.mutant) is not None:
            trial.fate = "equivalent"
        place = f"{trial.module}:{trial.mutant.line}"
        progress = f"[{done}/{len(trials)}] {place} {trial.mutant} {trial.fate}, {trial.cpu_s:.1f} s"
        print(progress, file=sys.stderr, flush=True)


def report(trials: list[Trial], command: str) -> Iterator[str]:
    total = Counter(trial.fate for trial in trials)
    caught = total["killed"] + total["timed out"]
    real = caught + total["survived"]
    yield "# Mutants of losses, advantages, trees and statistics"
    yield ""
    yield (
        f"`{command}`, Python {sys.version.split()[0]}: **{caught} of {real} mutants are killed "
        f"({caught / max(1, real):.0%})**, {total['survived']} survive; {total['equivalent']} more compute the same as "
        f"the original, and {total['not tried']} were not tried in the time given."
    )
    yield ""
    yield f"| module | known mutants | {' | '.join(FATES)} |"
    yield "|---" * (2 + len(FATES)) + "|"
    for module in dict.fromkeys(trial.module for trial in trials):
        fates = Counter(trial.fate for trial in trials if trial.module == module)
        cells = [f"`{module}`", len(known_mutants(module)), *(fates[fate] for fate in FATES)]
        yield f"| {' | '.join(map(str, cells))} |"
    for fate in ("survived", "equivalent"):
        rows = [
            f"| `{trial.module}`:{trial.mutant.line} | {trial.mutant} | {reason(trial.mutant) or ''} |"
            for trial in trials
            if trial.mutant is not None and trial.fate == fate
        ]
        if rows:
            yield from ["", f"## {fate.capitalize()}", "", "| where | change | why |", "|---|---|---|", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-module", type=int, default=10, help="mutants to try in each module")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--modules", nargs="*", default=list(MODULES), choices=MODULES, help="default: all")
    parser.add_argument("--jobs", type=int, default=1, help="test processes at the same time")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="stop after this time, and report")
    options = parser.parse_args()
    begin = time.monotonic()
    end = begin + options.limit_s
    os.nice(10)
    # Before torch loads. A GPU would be shared by all jobs, and these modules' numbers do not depend on it.
    os.environ |= {"MKL_CBWR": "AUTO,STRICT", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    for name in PRELOADED:
        with suppress(ImportError):  # tests that need it say so
            importlib.import_module(name)
    with copies_of_repository(options.jobs) as copies:
        cpu_s = measure(options.modules, copies, end)
        trials = [trial for module in options.modules for trial in sample(module, options.per_module, options.seed)]
        for trial in trials:
            trial.limit_s = math.ceil(20 + 5 * cpu_s[trial.module])
        # The longest first, so that none is left over for one process at the end.
        try_mutants(sorted(trials, key=lambda trial: -cpu_s[trial.module]), copies, end)
    trials.sort(key=lambda trial: (options.modules.index(trial.module), trial.mutant.line if trial.mutant else 0))
    command = f"python -m benchmarks.mutation --per-module {options.per_module} --seed {options.seed}"
    print("\n".join(report(trials, command)))
    used_s = sum(trial.cpu_s for trial in trials) + sum(cpu_s.values())
    print(f"{time.monotonic() - begin:.0f} s, {used_s:.0f} s of CPU time", file=sys.stderr)


if __name__ == "__main__":
    main()
