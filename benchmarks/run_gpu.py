"""Runs the benchmarks on a machine with one large GPU and keeps what they print.

    python3 benchmarks/run_gpu.py OUT [JOB ...] [--site wheels/site.tar.xz] [--limit-s 560]

Without jobs all are run, in this order. What a job prints goes to OUT as Markdown, what it
complains of to OUT/log.txt; a job that fails does not stop the others. `--site` unpacks
Python packages that the machine lacks, behind those that it has. With `--limit-s` no job
outlives that many seconds after the start.
"""

from __future__ import annotations

import argparse
import os
import site
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
# dill takes what lies in a folder of this name for installed, and pickles everything else by value.
PACKAGES = Path("/tmp/bough-benchmarks/site-packages")

FOUR, SMALL = "--model qwen3-4b --checkpointing", "--model qwen3-0.6b"
# The file that a job's output goes to, about how many seconds it takes on an H200, and its command.
JOBS: dict[str, tuple[str, int, str]] = {
    "dpo-30": ("dpo.md", 150, f"dpo.py {FOUR} --compile --rounds 30 --trl-batches 3 6"),
    "hybrid-dpo": ("hybrid_trees.md", 240, "hybrid_trees.py --checkpointing --trl-batches 3 6"),
    "grpo": ("grpo.md", 200, f"grpo.py {FOUR} --compile --trl-batches 2 8"),
    "sft-4b": ("sft.md", 160, f"sft.py {FOUR} --compile --trl flex_attention:8192"),
    "sft-0.6b": (
        "sft.md",
        160,
        f"sft.py {SMALL} --tuning full --checkpointing --compile --budget 32768 --trl flex_attention:32768"
        " flex_attention:8192",
    ),
    "sft-0.6b-lora": (
        "sft.md",
        160,
        f"sft.py {SMALL} --tuning lora --checkpointing --compile --budget 32768 --trl flex_attention:32768",
    ),
    "episode-dpo": ("episode_dpo.md", 90, f"episode_dpo.py {FOUR} --trl-batches 1 4"),
    "limit": ("limit.md", 140, "limit.py --model qwen3-4b --work sft --variants compiled --warm-up 1 --steps 3"),
    "dpo-15": ("dpo.md", 120, f"dpo.py {FOUR} --compile --rounds 15 --trl-batches 3 15"),
    "sft-think": (
        "sft.md",
        90,
        f"sft.py {FOUR} --tuning lora --think 150 --episodes 2 --trl sdpa:0 sdpa:4096 --trl-steps 1",
    ),
    "episode-dpo-2x2": (
        "episode_dpo.md",
        80,
        f"episode_dpo.py {FOUR} --trl-batches 1 4 --tasks 2 --successes 2 --failures 2",
    ),
    "head": ("head.md", 60, "tree_build.py"),
    "rollouts": ("rollouts.md", 90, f"rollouts.py {SMALL} --episodes 128 --turns 10 --answer 32 --length 4096"),
}
# Not run unless asked for.
MORE: dict[str, tuple[str, int, str]] = {
    "smoke": ("log.txt", 60, "dpo.py --model tiny --rounds 3 --trl-batches 3"),
    "attention": ("attention.md", 90, "attention.py"),
    "sft-sdpa": ("sft.md", 150, f"sft.py {FOUR} --compile --trl sdpa:0 sdpa:8192"),
    "limit-lora": (
        "limit.md",
        90,
        "limit.py --model qwen3-4b --work sft --tuning lora --variants compiled --warm-up 1 --steps 3",
    ),
    "limit-dpo": ("limit.md", 140, "limit.py --model qwen3-4b --work dpo --variants compiled --warm-up 1 --steps 3"),
    "limit-eager": ("limit.md", 120, "limit.py --model qwen3-4b --warm-up 1 --steps 3"),
    "dpo-eager": ("dpo.md", 100, f"dpo.py {FOUR} --rounds 30 --trl-batches 15"),
    "dpo-0.6b": ("dpo.md", 100, f"dpo.py {SMALL} --rounds 15 30 --trl-batches 3 15"),
    "grpo-0.6b": ("grpo.md", 80, f"grpo.py {SMALL} --trl-batches 2 8"),
}


def unpack(archive: Path) -> None:
    """Put the packages where Python looks last, and ours too."""
    if not PACKAGES.exists():
        PACKAGES.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            tar.extractall(PACKAGES, filter="data")
    paths = [str(PACKAGES), str(HERE.parent.resolve() / "src")]
    try:
        (Path(site.getsitepackages()[0]) / "bough-benchmarks.pth").write_text("\n".join(paths) + "\n")
        subprocess.run([sys.executable, "-c", "import bough.types, datasets, trl"], check=True)
    except (OSError, subprocess.CalledProcessError):  # not ours to write, or too old beside them: then they come first
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def run(name: str, out: Path, seconds_left: float) -> str:
    file, _, command = (JOBS | MORE)[name]
    begin = time.monotonic()
    with (out / file).open("a") as kept, (out / "log.txt").open("a") as log:
        log.write(f"\n===== {name}: {command}\n")
        log.flush()
        process = subprocess.Popen(
            [sys.executable, HERE / command.split()[0], *command.split()[1:]],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        killer = threading.Timer(seconds_left, process.kill)
        killer.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            kept.write(line)
            kept.flush()
        process.wait()
        killer.cancel()
    return f"{name}: exit {process.returncode} after {time.monotonic() - begin:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"{', '.join(JOBS)}; only if named: {', '.join(MORE)}")
    parser.add_argument("--site", type=Path)
    parser.add_argument("--limit-s", type=float, default=3600)
    options = parser.parse_args()
    begin = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.site:
        unpack(options.site)
    reports = []
    for name in options.jobs or JOBS:
        left = options.limit_s - (time.monotonic() - begin)
        reports.append(run(name, options.out, left) if left > 30 else f"{name}: not run, no time left")
        print(f"[{reports[-1]}]", flush=True)
    print("\n".join(reports))


if __name__ == "__main__":
    main()
