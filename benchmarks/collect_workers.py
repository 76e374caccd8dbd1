"""Episodes per second of `bough collect --cluster` by the number of workers, on one machine.

    python benchmarks/collect_workers.py --workers 1 2 4 --gpus-per-worker 0        # on CPUs
    python benchmarks/collect_workers.py --workers 1 2 4 --gpus-per-worker 0.25     # several on one GPU

SmolLM2 in the household, every episode with the same number of turns. The first row is one process without Ray.
The clock starts when as many episodes have finished as are played at the same time, so that neither loading
the model nor the first episodes count: all of them end at about the same moment. `all` is the whole command.
Each row is printed as it is measured, and the table at the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import machine, table


def measure(workers: int, options: argparse.Namespace, folder: Path) -> list[object]:
    command = command_of(workers, options, folder)
    begin = time.monotonic()
    with (folder.parent / f"{workers}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        seen = [(begin, 0)]
        try:
            while process.poll() is None and time.monotonic() - begin < options.limit_s:
                time.sleep(0.1)
                finished = episodes(folder / "trajectories.jsonl")
                if finished > seen[-1][1]:
                    seen.append((time.monotonic(), finished))
        finally:
            process.terminate()
            process.wait()
    rate = episodes_per_s(seen, options.concurrency)
    if rate is None:
        return [workers or "no Ray", "too few", log_end(folder.parent / f"{workers}.log"), ""]
    done = f"{seen[-1][1]} of {options.tasks}"
    return [workers or "no Ray", done, f"{rate:.2f}", f"{time.monotonic() - begin:.0f} s"]


def command_of(workers: int, options: argparse.Namespace, folder: Path) -> list[str]:
    """`bough collect`, in which nothing but the number of turns ends an episode before its task is solved."""
    settings = {
        "environment": "household", "model": options.model, "tasks": options.tasks, "output": folder,
        "concurrency": options.concurrency, "max-turns": options.turns, "max-new-tokens": options.new_tokens,
        "max-errors": 0, "max-repeats": 0, "rescore": 0,
    }  # fmt: skip
    if workers:
        settings |= {"cluster": "auto", "workers": workers, "gpus-per-worker": options.gpus_per_worker}
    return [sys.executable, "-m", "bough", "collect", *(f"--{name}={value}" for name, value in settings.items())]


def episodes_per_s(seen: list[tuple[float, int]], concurrency: int) -> float | None:
    """From the times at which numbers of episodes were finished; None if few more than the first wave were."""
    later = [(when, count) for when, count in seen if count >= concurrency]
    if len(later) < 2:
        return None
    (start, before), (end, after) = later[0], later[-1]
    return (after - before) / (end - start)


def episodes(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def log_end(path: Path) -> str:
    return path.read_text(errors="replace").strip().rpartition("\n")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4], help="0: one process without Ray")
    parser.add_argument("--gpus-per-worker", type=float, default=0)
    parser.add_argument("--tasks", type=int, default=128)
    parser.add_argument("--concurrency", type=int, default=64, help="episodes at the same time in all workers together")
    parser.add_argument("--turns", type=int, default=8, help="of each episode")
    parser.add_argument("--new-tokens", type=int, default=24, help="of a reply at most")
    parser.add_argument("--limit-s", type=float, default=90, help="stop a row after this many seconds")
    options = parser.parse_args()
    if options.tasks < 2 * options.concurrency:
        parser.error("--tasks must be at least twice --concurrency: the first episodes are not counted")
    work = f"{options.tasks} episodes, {options.concurrency} at a time, {options.turns} turns of {options.new_tokens}"
    print(f"{machine()}\n\n{options.model}: {work} tokens at most\n", flush=True)
    rows = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs would ignore it
    try:
        with tempfile.TemporaryDirectory() as folder:
            for workers in options.workers:
                rows.append(measure(workers, options, Path(folder) / f"{workers}"))
                print(rows[-1], flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(f"\n{table(['workers', 'episodes', 'episodes/s', 'all'], rows)}")


if __name__ == "__main__":
    main()
