"""How many small mistakes the tests notice: mutants of the modules whose numbers everything rests on.

    python benchmarks/mutation.py --per-module 10 > benchmarks/results/mutation.md

Each mutant is one change (a comparison, a sign, a constant, min for max, a dropped abs or
detach, …) in a copy of the repository; the module's own tests run against it until the first
failure. The sample is the same for the same seed. Children are forked from a process
that has loaded torch and pytest, so a mutant costs a second or two.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
MODULES = [
    *(f"methods/{name}" for name in ("advantages", "averaging", "base", "dpo", "grpo", "sft", "surrogate")),
    *(f"trees/{name}" for name in ("build", "partition", "pack", "attend", "layers")),
    *(f"evaluation/{name}" for name in ("distributions", "intervals", "paired", "gate", "sequential", "comparison")),
    *(f"evaluation/{name}" for name in ("power", "success", "pass_at_k", "outcomes")),
]
# Functions that are tested as parts of what is made of them.
TESTED_WITH = {"methods/surrogate": ["tests/methods/test_grpo.py"]}
# What tests and package take longest to load. The package itself is loaded by each child, from its copy.
PRELOADED = (
    "torch", "transformers", "transformers.modeling_layers", "peft", "pydantic", "rich.progress", "scipy.stats",
    "statsmodels.api", "hypothesis.strategies", "hypothesis.extra.numpy", "_hypothesis_pytestplugin", "xdist.plugin",
    "pytest_timeout", "pytest",
)  # fmt: skip
# Mutants that compute the same, by the line and the change, and why no test can tell them apart.
STRICT = "both have the same length by construction"
NUMBER = "a number of another type, the same value"
EQUIVALENT = {
    (
        "return Aggregation([1 / max(length, 1) for length in lengths], float(num_sequences))",
        "`float(num_sequences)` → `num_sequences`",
    ): NUMBER,
    (
        "too_far_N = (advantages_N < 0) & (ratio_N > farthest)",
        "`ratio_N > farthest` → `ratio_N >= farthest`",
    ): "differs only where the ratio is the bound to the last bit; the gain is the same there",
    ("cut = np.zeros(num_calls + 1, np.int64)", "`1` → `2`"): "one more entry that is not read",
    (
        "for j in range(1, num_calls + 1):",
        "`1` → `2`",
    ): "the first call alone costs 0 and is cut at 0, as the zeros say",
    (
        "predictors = [np.arange(stop - len(call.completion_ids), stop) "
        "for stop, call in zip(stops, members, strict=True)]",
        "`True` → `False`",
    ): STRICT,
    (
        "return table.sum(-1, dtype=torch.int32), table.argsort(dim=-1, descending=True, stable=True).to(torch.int32)",
        "`True` → `False`",
    ): "the order of the listed blocks is free",
    ("high = 1.0 if successes >= trials else min(1.0, centre + half)", "`1.0` → `2.0`"): (
        "below 1 by itself unless all succeed"
    ),
    (
        "return top + float(np.log(np.mean(np.exp(logs - top)))) if np.isfinite(top) else top",
        "`float(np.log(np.mean(np.exp(logs - top))))` → `np.log(np.mean(np.exp(logs - top)))`",
    ): NUMBER,
    ("return [theirs - mine for mine, theirs in zip(*sides, strict=True)]", "`True` → `False`"): STRICT,
    ("NEAR = 1e-7", "`1e-7` → `-0.9999999`"): "the ends are found more exactly",
    ("adjusted, highest = [1.0] * len(p_values), 0.0", "`1.0` → `0.0`"): "every entry is written before it is read",
    ("adjusted, highest = [1.0] * len(p_values), 0.0", "`1.0` → `2.0`"): "every entry is written before it is read",
    ("adjusted, highest = [1.0] * len(p_values), 0.0", "`0.0` → `-1.0`"): "p-values are not negative",
    ("square = max(square, difference * difference, 1e-12)", "`1e-12` → `-0.999999999999`"): (
        "matters only for differences below a millionth"
    ),
    (
        "root = by_chance * math.sqrt(square) + by_truth * math.sqrt(max(0.0, square - difference * difference))",
        "`0.0` → `-1.0`",
    ): "the line before has made it 0 or more",
    (
        "return torch.cat([p if v is None else p.new_tensor(v) for p, v in zip(pieces, values, strict=True)])",
        "`True` → `False`",
    ): STRICT,
}


@dataclass
class Result:
    """What became of a module's mutants."""

    module: str
    known: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    survivors: list[Mutant] = field(default_factory=list)


def copy_repository(target: Path) -> None:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        source, copy = ROOT / name, target / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())


def run_tests(copy: Path, tests: list[str], timeout_s: float) -> str:
    """`passed`, `failed` or `timed out`, from a child that imports the package afresh."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.chdir(copy)
        sys.path[:0] = [str(copy / "src"), str(copy)]
        os.environ["PYTHONPATH"] = f"{copy / 'src'}"
        sys.dont_write_bytecode = True
        import pytest

        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests])))
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timed out"


def try_module(copy: Path, module: str, count: int, seed: int) -> Result:
    source, tests = copy / "src" / "bough" / f"{module}.py", _tests_of(module)
    original = source.read_text(encoding="utf-8")
    known = mutants(original)
    result = Result(module, len(known))
    begin = time.monotonic()
    fate = run_tests(copy, tests, 300)
    assert fate == "passed", f"{' '.join(tests)} does not pass before anything is changed: {fate}"
    timeout_s = 60 + 10 * (time.monotonic() - begin)  # for endless loops only: the machine may be busy
    chosen = random.Random(f"{seed} {module}").sample(known, min(count, len(known)))
    for mutant in sorted(chosen, key=lambda mutant: mutant.line):
        source.write_text(mutant.source, encoding="utf-8")
        fate = run_tests(copy, tests, timeout_s)
        print(f"{module}:{mutant.line} {mutant} {fate}", file=sys.stderr, flush=True)
        if fate == "passed":
            fate = "survived" if _why(mutant) is None else "equivalent"
            result.survivors.append(mutant)
        result.fates[fate] += 1
    source.write_text(original, encoding="utf-8")
    return result


def _why(mutant: Mutant) -> str | None:
    """Why no test can notice the mutant, if we know."""
    return EQUIVALENT.get((mutant.text, str(mutant)))


def _tests_of(module: str) -> list[str]:
    """The test files that begin with the module's name, such as `test_grpo_examples.py`, and those named above."""
    folder, _, name = module.rpartition("/")
    found = list((ROOT / "tests" / folder).glob(f"test_{name}*.py"))
    assert found, f"{module} has no tests of its own"
    return sorted(str(path.relative_to(ROOT)) for path in found) + TESTED_WITH.get(module, [])


def report(results: list[Result], count: int, seed: int) -> Iterator[str]:
    total = sum((result.fates for result in results), Counter[str]())
    caught = total["failed"] + total["timed out"]
    real = total.total() - total["equivalent"]
    yield "# Mutants of losses, advantages, trees and statistics"
    yield ""
    yield (
        f"`python benchmarks/mutation.py --per-module {count} --seed {seed}`, Python {sys.version.split()[0]}: "
        f"**{caught} of {real} mutants are killed ({caught / max(1, real):.0%})**, {total['survived']} survive; "
        f"{total['equivalent']} more compute the same as the original."
    )
    yield ""
    yield "| module | known mutants | tried | killed | timed out | survived | equivalent |"
    yield "|---|---|---|---|---|---|---|"
    for result in results:
        fates = [result.fates[fate] for fate in ("failed", "timed out", "survived", "equivalent")]
        yield "| " + " | ".join(map(str, [f"`{result.module}`", result.known, result.fates.total(), *fates])) + " |"
    for title, equivalent in (("Survived", False), ("Equivalent", True)):
        rows = [
            f"| `{result.module}`:{mutant.line} | {mutant} | {_why(mutant) or ''} |"
            for result in results
            for mutant in result.survivors
            if (_why(mutant) is not None) is equivalent
        ]
        if rows:
            yield from ["", f"## {title}", "", "| where | change | why |", "|---|---|---|", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-module", type=int, default=10, help="mutants to try in each module")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--modules", nargs="*", default=MODULES, help="modules, such as methods/grpo")
    options = parser.parse_args()
    os.nice(10)
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        copy_repository(Path(folder))
        results = [try_module(Path(folder), module, options.per_module, options.seed) for module in options.modules]
    print("\n".join(report(results, options.per_module, options.seed)))


if __name__ == "__main__":
    main()
