"""A thousand damaged inputs through the commands: which exit code each gives, and whether any is called a defect.

    python -m benchmarks.hostile.fuzz > benchmarks/results/fuzz.md
    python -m benchmarks.hostile.fuzz --only 417        # one case, with its words and its output

The cases are fixed by their numbers (`cases.py`). They run one after the other in a
process that is started again when a case ends it or takes longer than its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.hostile.cases import ROOT, case

LIMIT_S = 60
RECIPE = """\
name: base
model: tiny
defaults: {environment: household, max_turns: 6, max_new_tokens: 4}
stages:
  - collect: {name: expert, model: expert, tasks: 2}
  - demos:
  - sft: {max_steps: 1, max_length: 512}
  - eval: {tasks: 2}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, default=None)
    parser.add_argument("--base", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=int, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        _child(arguments.base, arguments.seed, range(arguments.child, arguments.cases))
        return
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        _prepare(base)
        if arguments.only is not None:
            print(json.dumps(_one(arguments.only, arguments.seed, base), indent=1))
            return
        begin = time.monotonic()
        results = _all(base, arguments.seed, arguments.cases)
        _report(results, arguments, time.monotonic() - begin)


def _prepare(base: Path) -> None:
    """What is damaged later: trajectories, an evaluation, a run with trained weights, tasks."""
    from bough.cli import main as bough

    base.mkdir()
    world = ["--environment", "household"]
    (base / "base.yaml").write_text(RECIPE)
    with contextlib.redirect_stdout(sys.stderr):
        for words in (
            ["collect", *world, "--model", "random", "--tasks", "3", "--attempts", "2", "--max-turns", "5",
             "--output", str(base / "played")],
            ["collect", *world, "--model", "expert", "--tasks", "3", "--output", str(base / "expert")],
            ["eval", *world, "--model", "expert", "random", "--tasks", "4", "--output", str(base / "evaluated")],
            ["run", str(base / "base.yaml"), "-o", str(base / "run"), "--report-to", "none"],
            ["card", str(base / "run")],
        ):  # fmt: skip
            assert bough(words) == 0, words
    played = base / "played/trajectories.jsonl"
    played.write_text(played.read_text() + (base / "expert/trajectories.jsonl").read_text().replace("#0", "#9"))
    rows = [json.loads(line) for line in played.read_text().splitlines()]
    (base / "tasks.jsonl").write_text("".join(json.dumps(row["task"]) + "\n" for row in rows[::2]))


def _all(base: Path, seed: int, cases: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    while len(results) < cases:
        command = [sys.executable, "-m", "benchmarks.hostile.fuzz", "--child", str(len(results)), "--cases", str(cases)]
        child = subprocess.Popen(
            [*command, "--seed", str(seed), "--base", str(base)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        why = _listen(child, results, cases)
        child.kill()
        child.wait()
        if len(results) < cases:
            kind, words = "?", []
            with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):
                kind, words = case(len(results), seed, base, Path(folder))
            results.append({"number": len(results), "kind": kind, "outcome": why, "words": words, "said": ""})
            print(f"{why}: {results[-1]}", file=sys.stderr)
    return results


def _listen(child: subprocess.Popen[bytes], results: list[dict[str, Any]], cases: int) -> str:
    """Takes results until there are no more; why not."""
    assert child.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        first = True
        while len(results) < cases:
            if not selector.select(LIMIT_S * (3 if first else 1)):
                return "too long"
            piece = os.read(child.stdout.fileno(), 1 << 16)
            if not piece:
                return "died"
            first = False
            *lines, rest = (rest + piece).split(b"\n")
            results += [json.loads(line) for line in lines]
    return ""


def _child(base: Path, seed: int, numbers: range) -> None:
    # Nothing that a command prints gets between the results.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for number in numbers:
        print(json.dumps(_one(number, seed, base)), file=results, flush=True)


def _one(number: int, seed: int, base: Path) -> dict[str, Any]:
    from bough.cli import main as bough

    folder = Path(tempfile.mkdtemp())
    here = Path.cwd()
    out, err = io.StringIO(), io.StringIO()
    try:
        kind, words = case(number, seed, base, folder)
        os.chdir(folder)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code: object = bough(words)
            except BaseException as error:
                code = f"raised {type(error).__name__}"
        said = err.getvalue()
        outcome = "defect" if "defect of Bough" in said else str(code)
        where = _where(words) if outcome == "defect" else ""
    finally:
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    shown = [word[:60] for word in words]
    return {
        "number": number,
        "kind": kind,
        "outcome": outcome,
        "words": shown,
        "said": said[-300:],
        "where": where,
        "memory": memory,
    }


def _where(words: list[str]) -> str:
    """The last line of Bough that the same command goes through, and the error."""
    from bough.cli import main as bough

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            bough([*words, "--debug"])
        except BaseException as error:
            ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/bough/" in frame.filename]
            place = f"{ours[-1].filename.rpartition('/bough/')[2]}:{ours[-1].lineno}" if ours else "?"
            return f"{place}: {type(error).__name__}: {str(error)[:120]}"
    return "not again"


def _report(results: list[dict[str, Any]], arguments: argparse.Namespace, seconds: float) -> None:
    command = f"python -m benchmarks.hostile.fuzz --cases {arguments.cases} --seed {arguments.seed}"
    versions = f"{platform.machine()}, Python {platform.python_version()}, {time.strftime('%F')}"
    memory = max(result.get("memory", 0) for result in results)
    print(f"`{command}`: {versions}; {seconds:.0f} s\n")
    print("Exit codes: 0 done, 1 the work failed, 2 the input was wrong.")
    print(f"A case may take {LIMIT_S} s; the most memory that the process had is {memory:,} MB.\n")
    columns = ["0", "1", "2", "defect", "too long", "died", "other"]
    named = {result["number"]: result["outcome"] if result["outcome"] in columns else "other" for result in results}
    print("| commands | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for kind in [*sorted({result["kind"] for result in results}), "all"]:
        counts = Counter(named[r["number"]] for r in results if kind in (r["kind"], "all"))
        print(f"| {kind} | " + " | ".join(str(counts[column]) for column in columns) + " |")
    bad = [result for result in results if named[result["number"]] not in ("0", "1", "2")]
    print(f"\n{len(bad)} of {len(results)} cases ended in another way than with a sentence.")
    for one in bad:
        print(f"- {one['number']}, {one['kind']}: {one['outcome']}: {one.get('where') or one['said'][-150:]!r}")


if __name__ == "__main__":
    main()
