"""The viewer with many trajectories on file: how soon a page shows something, and how soon a list answers.

    python -m benchmarks.viewer [--records 10000] [--output benchmarks/results/viewer.md]

Some hundred household episodes are really played, then written again under other names
until there are enough. A page's time is the browser's own, from the start of the
navigation until its rows are on the screen, each time in a page loaded anew.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from tests.report.viewer.tab import Tab

from bough.cli import main as bough
from bough.data.reader import read
from bough.data.writer import Writer
from bough.engines.server.app import listen
from bough.report.viewer.contents import Root
from bough.report.viewer.index import Index
from bough.report.viewer.server import FolderAnswers, door, make_app
from bough.types import Trajectory

SHOWN = (
    "!!document.querySelector('main h1') && (!location.hash.includes('traj') || !!document.querySelector('tbody tr'))"
)
LISTS = {
    "all trajectories": {},
    "failures": {"outcome": "failure"},
    "search for two words": {"q": "desklamp drawer"},
    "search, filter and sort": {"q": "shelf", "outcome": "failure", "sort": "turns", "order": "down"},
    "the last page": {"offset": "9900"},
}


def fill(folder: Path, records: int) -> int:
    """Writes the trajectories; returns the file's size."""
    played = folder.parent / "played"
    common = ["--environment", "household", "--tasks", "60", "--output"]
    bough(["collect", "--model", "random", "--attempts", "4", "--max-turns", "30", *common, str(played / "random")])
    bough(["collect", "--model", "expert", *common, str(played / "expert")])
    real = [one for name in ("random", "expert") for one in read(played / name / "trajectories.jsonl")]
    folder.mkdir()
    rng, file = random.Random(0), folder / "trajectories.jsonl"
    with Writer(file, batch=512, batch_s=60) as writer:
        for number in range(records):
            one = rng.choice(real)
            assert isinstance(one, Trajectory)
            task = one.task.model_copy(update={"id": f"{one.task.id}-{number // 4}"})
            writer.write(one.model_copy(update={"id": f"{task.id}#{number % 4}", "task": task}))
    return file.stat().st_size


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, FolderAnswers]]:
    answers = FolderAnswers(Index(Root(folder)))
    listening = listen("127.0.0.1", 0)
    app = make_app(answers, door("127.0.0.1", remote=False, token=None))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/", answers
    finally:
        server.should_exit = True
        thread.join()


async def shown_after_ms(tab: Tab, address: str) -> float:
    """From the start of the navigation to the first rows on the screen, by the browser's clock."""
    await tab.call("Page.navigate", url="about:blank")
    await tab.call("Page.navigate", url=address)
    script = (
        "new Promise(done => { const look = () => { "
        f"if (location.href !== 'about:blank' && ({SHOWN})) requestAnimationFrame(() => done(performance.now())); "
        "else setTimeout(look, 1); }; look(); })"
    )
    return float(await tab.evaluate(script))


async def pages(tab: Tab, address: str, rounds: int) -> dict[str, list[float]]:
    return {
        page: [await shown_after_ms(tab, f"{address}#/{page}") for _ in range(rounds)]
        for page in ("runs", "trajectories")
    }


def lists(answers: FolderAnswers, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, asked in LISTS.items():
        for _ in range(rounds):
            begun = time.thread_time()
            answers.known["records"](asked)
            found.setdefault(name, []).append(1000 * (time.thread_time() - begun))
    return found


async def measure(folder: Path, rounds: int) -> tuple[float, list[tuple[str, list[float]]]]:
    """Seconds until the first index was complete, and the milliseconds of everything."""
    tab = await Tab.open()
    try:
        begun = time.monotonic()
        with serving(folder) as (address, answers):
            cold = await pages(tab, address, 5)
            while answers.index.busy:
                await asyncio.sleep(0.05)
            indexed = time.monotonic() - begun
            warm = await pages(tab, address, rounds)
            asked = lists(answers, rounds)
    finally:
        tab.close()
    rows = [(f"{page}, while the index is first built", times) for page, times in cold.items()]
    rows += [(f"{page}, index there", times) for page, times in warm.items()]
    return indexed, rows + [(f"list, CPU time: {name}", times) for name, times in asked.items()]


def report(records: int, rounds: int) -> str:
    with tempfile.TemporaryDirectory() as name:
        size = fill(Path(name) / "run", records)
        indexed, rows = asyncio.run(measure(Path(name) / "run", rounds))
    load = os.getloadavg()[0]
    head = (
        f"{records:,} household trajectories in one file of {size / 1e6:.0f} MB; {rounds} rounds each, milliseconds\n"
        f"{platform.machine()}, {os.cpu_count()} cores, load average {load:.0f}; Python {platform.python_version()}; "
        f"{datetime.now(UTC):%Y-%m-%d}\n\n"
        f"The first index was complete after {indexed:.0f} s; pages are answered from what is in it by then.\n\n"
        "| what | median | worst |\n|---|---|---|\n"
    )
    return head + "".join(f"| {name} | {statistics.median(t):.0f} | {max(t):.0f} |\n" for name, t in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    table = report(given.records, given.rounds)
    print(table)
    if given.output:
        given.output.write_text(table)


if __name__ == "__main__":
    main()
