"""What all benchmarks share: a clock, peak memory, and tables that say where they were made.

On a GPU the clock waits until the work is done. On a CPU it counts the seconds that the
process has computed: with one thread those are the real ones, less what other processes take.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

PACKAGES = ("torch", "transformers", "peft", "accelerate", "trl")


def now() -> float:
    """Seconds, read when everything before is done."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds_of(do: Callable[[], object], *, warm_up: int, times: int) -> float:
    """The median time of `do`, after calls that are not counted."""
    for _ in range(warm_up):
        do()
    taken = []
    for _ in range(times):
        begin = now()
        do()
        taken.append(now() - begin)
    return statistics.median(taken)


class Peak:
    """The most memory in use inside a `with`, in GiB: the GPU's, or on the CPU the process's."""

    gib: float = float("nan")

    def __enter__(self) -> Peak:
        release()
        if torch.cuda.is_available():
            if torch.cuda.memory_allocated() > 2**29:
                print(f"({torch.cuda.memory_allocated() / 2**30:.1f} GiB are still held from before)", flush=True)
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is in use now
        return self

    def __exit__(self, *_: object) -> None:
        if torch.cuda.is_available():
            self.gib = torch.cuda.max_memory_allocated() / 2**30
        else:
            lines = Path("/proc/self/status").read_text().splitlines()
            self.gib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20
        release()


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def failure_in(result: list[str]) -> Iterator[None]:
    """A contender that runs out of memory or does not run at all has that as its result; the others go on."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, torch.cuda.OutOfMemoryError):
            traceback.print_exc()
        result.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}")
    release()


def matmul_rate(size: int | None = None) -> float:
    """The FLOP/s of a large matrix product of random numbers: what this machine can do at best."""
    cuda = torch.cuda.is_available()
    size = size or (8192 if cuda else 1024)
    kind = {"device": "cuda", "dtype": torch.bfloat16} if cuda else {}
    left, right = torch.randn(size, size, **kind), torch.randn(size, size, **kind)
    return 2 * size**3 / seconds_of(lambda: left @ right, warm_up=5, times=20)


def machine() -> str:
    """The hardware and the versions, in a line."""
    if torch.cuda.is_available():
        hardware = f"{torch.cuda.get_device_name()}, bfloat16"
    else:
        hardware = f"{platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores, float32, CPU seconds"
    return (
        f"{hardware}; Python {platform.python_version()}, {', '.join(map(_version, PACKAGES))}; {time.strftime('%F')}"
    )


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


class Gauge(NamedTuple):
    """By what two contenders are seen to compute the same, before any update."""

    loss: float
    gradient_norm: float

    def against(self, other: Gauge) -> str:
        """How far apart the two are, relative to the other."""
        # The loss of GRPO at its first step may be exactly 0.
        loss, norm = (abs(mine - theirs) / (abs(theirs) or 1.0) for mine, theirs in zip(self, other, strict=True))
        losses = f"loss {self.loss:.6f} and {other.loss:.6f} (apart {loss:.0e})"
        return f"{losses}, gradient norm {self.gradient_norm:.5f} and {other.gradient_norm:.5f} (apart {norm:.0e})"
