"""Episodes per second of 1, 2, … plain Ray actors on one machine, and what the driver spends on each episode.

    python -m benchmarks.scale_workers --workers 1 2 --output benchmarks/results/scale-workers.json

Each actor has the `tiny` model and plays household episodes, `--slots` at a time. The driver
hands out attempts one by one and writes the finished episodes, as a collection does. The
simulator takes its driver's constants from here, and `scale.py` compares its
prediction with these rows. On a machine that other work shares, wall time is noise: CPU
seconds of the workers and of the driver are in the file beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import ray

from bough.config.groups import AgentConfig, CollectConfig, LimitsConfig, SamplingConfig
from bough.rollouts.collect import Attempt, Collection, Tally, attempts, play_attempt
from bough.rollouts.episode import make_agent
from bough.types import Trajectory
from bough.worlds.household.environment import Household

TURNS, ANSWER = 10, 16


class Worker:
    """An engine in a process of its own."""

    async def load(self) -> None:
        import torch

        torch.set_num_threads(1)
        sampling = SamplingConfig(max_new_tokens=ANSWER)
        self._agent = await make_agent(AgentConfig(model="tiny"), sampling)
        self._limits = LimitsConfig(max_turns=TURNS, max_repeats=0, max_errors=0)

    async def play(self, attempt: Attempt) -> tuple[str, int]:
        """The finished episode as JSON, and its sampled tokens."""
        played = await play_attempt(Household, self._agent, attempt, self._limits, range(1), Tally())
        assert played is not None, attempt.id
        episode = played[0]
        num_tokens = sum(len(turn.call.completion_ids) for turn in episode.turns if turn.call)
        return episode.model_dump_json(), num_tokens

    async def cpu_s(self) -> float:
        return time.process_time()


def run(num_workers: int, episodes: int, slots: int, folder: Path) -> dict[str, Any]:
    """One row: `episodes` per worker."""
    remote = ray.remote(num_cpus=0, max_concurrency=slots + 1)(Worker)
    workers = [remote.remote() for _ in range(num_workers)]
    ray.get([worker.load.remote() for worker in workers])
    tasks = Household.tasks(Household.Options(), seed=num_workers)
    source = attempts(islice(tasks, num_workers * (episodes + slots)), 1, 0)
    _play(workers, islice(source, num_workers * slots), slots, None)  # everything is loaded and compiled
    config = CollectConfig(environment="household", model="tiny", output=folder / f"with-{num_workers}")
    with Collection(config) as collection:
        before = ray.get([worker.cpu_s.remote() for worker in workers])
        begin, begin_cpu = time.perf_counter(), time.process_time()
        driving = _play(workers, islice(source, num_workers * episodes), slots, collection)
        driver_cpu, wall = time.process_time() - begin_cpu, time.perf_counter() - begin
        after = ray.get([worker.cpu_s.remote() for worker in workers])
    for worker in workers:
        ray.kill(worker)
    cpu = [end - start for start, end in zip(before, after, strict=True)]
    total = sum(driving.counts)
    parts = driving.spent_s | {"Ray's threads": driver_cpu - sum(driving.spent_s.values())}
    return {
        "workers": num_workers,
        "episodes": total,
        "tokens_per_episode": driving.tokens / total,
        "episodes_per_s": total / wall,
        "episodes_per_cpu_s": sum(count / seconds for count, seconds in zip(driving.counts, cpu, strict=True)),
        "worker_cpu_s_per_episode": sum(cpu) / total,
        "driver_cpu_s_per_episode": driver_cpu / total,
        "driver_parts_ms": {part: round(seconds / total * 1e3, 2) for part, seconds in parts.items()},
        "wall_s": wall,
        "slots": slots,
    }


@dataclass
class Driving:
    """What the driver did: episodes per worker, all tokens, and the CPU time of its own thread by part."""

    counts: list[int]
    tokens: int = 0
    spent_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin = time.thread_time()
        yield
        self.spent_s[name] = self.spent_s.get(name, 0.0) + time.thread_time() - begin


def _play(workers: list[Any], source: Iterator[Attempt], slots: int, collection: Collection | None) -> Driving:
    """Plays all attempts, the next where one has ended."""
    running: dict[Any, int] = {}
    driving = Driving([0] * len(workers))

    def hand_out(which: int) -> None:
        with driving.part("hand out"):
            if (attempt := next(source, None)) is not None:
                running[workers[which].play.remote(attempt)] = which

    for number in range(len(workers) * slots):
        hand_out(number % len(workers))
    while running:
        with driving.part("wait"):
            done, _ = ray.wait(list(running))
        for reference in done:
            which = running.pop(reference)
            with driving.part("receive"):
                record, num_tokens = ray.get(reference)
            hand_out(which)
            driving.counts[which] += 1
            driving.tokens += num_tokens
            if collection is not None:
                with driving.part("validate"):
                    episode = Trajectory.model_validate_json(record)
                with driving.part("write"):
                    collection.add(episode, [])
    return driving


def call_s(times: int = 200) -> float:
    """Latency of a remote call."""

    class Echo:
        def same(self, value: int) -> int:
            return value

    echo = ray.remote(num_cpus=0)(Echo).remote()
    ray.get(echo.same.remote(0))
    taken = []
    for number in range(times):
        begin = time.perf_counter()
        ray.get(echo.same.remote(number))
        taken.append(time.perf_counter() - begin)
    ray.kill(echo)
    return sorted(taken)[times // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--episodes", type=int, default=48, help="per worker")
    parser.add_argument("--slots", type=int, default=8, help="episodes in flight per worker")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    ray.init(num_cpus=max(options.workers) + 1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        rows = [run(number, options.episodes, options.slots, Path(folder)) for number in options.workers]
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"ray {ray.__version__}; {time.strftime('%F')}",
        "load": os.getloadavg()[0],
        "work": f"household, tiny, {TURNS} turns of {ANSWER} tokens",
        "cores": os.cpu_count(),
        "call_s": call_s(),
        "rows": rows,
    }
    ray.shutdown()
    text = json.dumps(found, indent=2) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
