"""How many programs the sandbox runs in a second: each in a process of its own, and as cells of a session.

    python benchmarks/sandbox.py [--programs 1000] [--isolation bubblewrap namespaces]

Beside it what people do instead, a `python -I -c` for each program with no isolation at all.
CPU time is all that was spent on a program, on both sides; other work on the
machine makes the clock slower but leaves it as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from bough.sandbox.base import SandboxLimits
from bough.sandbox.inside.kernel import descendants
from bough.sandbox.isolation import Isolation, choose
from bough.sandbox.pool import Sandbox

PROGRAM = "1 + 1"


def cpu_s(sandbox: Sandbox | None = None) -> float:
    """What this process and those in sandboxes have computed so far."""
    spent = sum(os.times()[:4])
    for worker in [*sandbox._idle, *sandbox._busy] if sandbox else []:
        for pid in [worker.pid or 0, *descendants(worker.pid or 0)]:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            spent += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return spent


def row(what: str, programs: int, clock_s: float, computed_s: float) -> str:
    return f"| {what} | {programs / clock_s:,.0f} | {1000 * computed_s / programs:.1f} | {clock_s:.1f} |"


async def measure(isolation: Isolation, programs: int) -> list[str]:
    """Both ways with one kind of isolation."""
    rows = []
    async with Sandbox(SandboxLimits(), isolation=isolation) as sandbox:
        await asyncio.gather(*(sandbox.run(PROGRAM) for _ in range(4 * sandbox.workers)))
        begin, before = time.perf_counter(), cpu_s(sandbox)
        results = await asyncio.gather(*(sandbox.run(PROGRAM) for _ in range(programs)))
        rows.append(row(f"fresh process, {isolation}", programs, time.perf_counter() - begin, cpu_s(sandbox) - before))
        assert {result.value for result in results} == {"2"}
        async with sandbox.session() as session:
            await session.run(PROGRAM)
            begin, before = time.perf_counter(), cpu_s(sandbox)
            values = {(await session.run(PROGRAM)).value for _ in range(programs)}
            rows.append(
                row(f"cell of one session, {isolation}", programs, time.perf_counter() - begin, cpu_s(sandbox) - before)
            )
            assert values == {"2"}
    return rows


async def plain(programs: int) -> str:
    """A new interpreter for each program, as many at once as there are cores."""
    turns = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def run() -> None:
        async with turns:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", "print(1 + 1)", stdout=subprocess.PIPE
            )
            assert await child.communicate() == (b"2\n", None)

    begin, before = time.perf_counter(), cpu_s()
    await asyncio.gather(*(run() for _ in range(programs)))
    return row("new interpreter, no sandbox", programs, time.perf_counter() - begin, cpu_s() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--isolation", nargs="+", default=None)
    arguments = parser.parse_args()
    cores, (load, *_) = len(os.sched_getaffinity(0)), os.getloadavg()
    print(f"`{PROGRAM}`, {arguments.programs:,} times; {platform.machine()}, {cores} cores, Linux {platform.release()}")
    print(f"Python {platform.python_version()}, {time.strftime('%F')}; load of the machine before: {load:.1f}\n")
    print("| way | programs/s | CPU-ms each | seconds |\n|---|---|---|---|")
    for isolation in (
        arguments.isolation or ["bubblewrap", "namespaces"] if choose() == "bubblewrap" else ["namespaces"]
    ):
        for line in asyncio.run(measure(isolation, arguments.programs)):
            print(line, flush=True)
    print(asyncio.run(plain(max(1, arguments.programs // 10))))


if __name__ == "__main__":
    main()
