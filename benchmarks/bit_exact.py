"""What bit-exact matrix products cost on a CPU: MKL_CBWR=AUTO,STRICT, which Bough sets, beside MKL as it comes.

    python benchmarks/bit_exact.py [--rounds 2] [--threads 1 16] [--output FILE]

The matrix products of one layer of SmolLM2 (576 wide) and of its head, for as many rows as a
step of decoding or a prompt has, and a training step of `tiny`. Each setting is measured in
processes of its own, in turns; a time is the fastest of all rounds, in CPU seconds with one
thread and by the clock with several. Where torch has no MKL, both columns differ by noise alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE, STRICT = "MKL_CBWR", "AUTO,STRICT"
LAYER = [(576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576)]
HEAD = [(576, 49_152)]
WORK = {
    "a layer, decoding 2": (LAYER, 2),
    "a layer, decoding 16": (LAYER, 16),
    "a layer, decoding 128": (LAYER, 128),
    "a layer, a prompt of 512": (LAYER, 512),
    "the head, decoding 2": (HEAD, 2),
    "the head, decoding 16": (HEAD, 16),
    "the head, decoding 128": (HEAD, 128),
}
SECONDS = 0.4  # for each piece of work


def fastest(do: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of the quickest call."""
    do()
    times, end = [], clock() + SECONDS
    while len(times) < 3 or clock() < end:
        begin = clock()
        do()
        times.append(clock() - begin)
    return min(times)


def measure(threads: int) -> dict[str, Any]:
    """What one process measures with the setting that it was started with."""
    import torch  # before Bough, which would set the variable

    torch.set_num_threads(threads)
    # One thread's computing time is the real one, less what other processes take.
    clock = time.process_time if threads == 1 else time.perf_counter
    result: dict[str, Any] = {"seconds": {}, "mkl": torch.backends.mkl.is_available()}
    with torch.inference_mode():
        for name, (shapes, rows) in WORK.items():
            factors = [(torch.randn(rows, size), torch.randn(width, size)) for size, width in shapes]

            def multiply(factors: list[tuple[torch.Tensor, torch.Tensor]] = factors) -> None:
                for left, right in factors:
                    torch.nn.functional.linear(left, right)

            result["seconds"][name] = fastest(multiply, clock)
    from bough.bit_exact import batches_differ

    result["differ"] = batches_differ()
    try:
        result["seconds"]["training step of `tiny`"] = fastest(training_step(), clock)
    except Exception as error:  # a machine without all packages measures the rest
        result["missing"] = f"{type(error).__name__}: {error}"
    return result


def training_step() -> Callable[[], None]:
    """Eight calls of 120 tokens: log-probabilities, gradients, an update."""
    import torch

    from bough.policy.policy import Policy
    from bough.types import Call

    policy = Policy.load("tiny", device="cpu")
    optimizer = torch.optim.AdamW([weight for weight in policy.parameters() if weight.requires_grad], lr=1e-6)
    calls = [Call(prompt_ids=list(range(3 + i, 83 + i)), completion_ids=list(range(20, 60))) for i in range(8)]

    def step() -> None:
        (-torch.cat(policy.logprobs(calls)).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def started(threads: int, *, strict: bool) -> dict[str, Any]:
    """One process's measurements."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    if strict:
        environment[VARIABLE] = STRICT
    command = [sys.executable, __file__, "--child", str(threads)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def best(results: list[dict[str, Any]], name: str) -> float:
    return min(result["seconds"].get(name, float("nan")) for result in results)


def report(threads: int, rounds: int) -> str:
    """A table for one number of threads."""
    plain, strict = [], []
    for _ in range(rounds):  # in turns, so that both meet the machine in the same moods
        plain.append(started(threads, strict=False))
        strict.append(started(threads, strict=True))
    names = list(plain[0]["seconds"])
    lines = ["| work | as it comes, ms | strict, ms | cost |", "|---|---|---|---|"]
    for name in names:
        before, after = best(plain, name), best(strict, name)
        lines.append(f"| {name} | {before * 1e3:.3f} | {after * 1e3:.3f} | {(after / before - 1) * 100:+.0f}% |")
    kept = "; ".join(f"{name}: {_kept(result[0])}" for name, result in (("as it comes", plain), ("strict", strict)))
    notes = [f"Rows have the same bits in any batch: {kept}."]
    notes += [f"No training step here ({plain[0]['missing']})."] if "missing" in plain[0] else []
    return f"### {threads} thread{'s' * (threads > 1)}\n\n" + "\n".join(lines) + "\n\n" + " ".join(notes) + "\n"


def _kept(result: dict[str, Any]) -> str:
    shapes = [f"{size}×{width}" for size, width in result["differ"]]
    return f"no ({', '.join(shapes)})" if shapes else "yes"


def machine() -> str:
    import torch

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or "unknown CPU"
    mkl = "with MKL" if torch.backends.mkl.is_available() else "without MKL"
    hardware = f"{platform.machine()}, {model}, {os.cpu_count()} cores, float32"
    return f"{hardware}; Python {platform.python_version()}, torch {torch.__version__} {mkl}; {time.strftime('%F')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, nargs="+", help="default: one, and as many as there are cores up to 16")
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    if VARIABLE in os.environ:
        print(f"({VARIABLE}={os.environ[VARIABLE]} is set; it is left out for one side)", flush=True)
    parts = [f"## {VARIABLE}={STRICT}\n\n{machine()}.\n"]
    for threads in options.threads or sorted({1, min(os.cpu_count() or 1, 16)}):
        parts.append(report(threads, options.rounds))
    text = "\n".join(parts)
    print(text)
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
