"""Python on the host per turn: everything around the model, with an engine that answers instantly.

    python benchmarks/host.py --title "after" --output benchmarks/results/host.md

Household episodes are played with SmolLM2's tokenizer and chat template, as `bough collect`
plays them. The engine returns token ids that were chosen beforehand, so what is left is the
work of the host: rendering, tokenising, records, the environment and the event loop. Times
are CPU time of the process; each part is its own time, without the parts that it calls.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from measure import machine, table

from bough.chat.template import ChatTemplate, load_template
from bough.chat.tokenizer import ControlTokens
from bough.config.groups import CollectConfig, LimitsConfig, SamplingConfig
from bough.engines import chat
from bough.engines.base import Generated
from bough.engines.chat import TemplateEngine
from bough.environments import isolated
from bough.rollouts import episode
from bough.rollouts.collect import Attempt, Collection, LocalRunner, attempts, collect
from bough.rollouts.episode import ModelAgent
from bough.types import Task
from bough.worlds.household.environment import Household

THOUGHT = "I have not looked there yet, and what I need may well be in that place."
Method = tuple[Any, str]
PARTS: dict[str, list[Method]] = {
    "rendering": [(ChatTemplate, "prompt"), (ChatTemplate, "text"), (ControlTokens, "escape")],
    "tokenising": [(ControlTokens, "encode"), (ChatTemplate, "decode")],
    "the call's record": [(chat, "Call")],
    "the turn's record": [(episode.Episode, "take"), (episode.Episode, "trajectory")],
    "environment: step": [(Household, "step"), (Household, "start")],
    "environment: creation, once per episode": [(isolated.Isolated, "_make")],
    "environment: checks": [(isolated, "check_observation")],
    "writing the trajectory": [(Collection, "add")],
}


class Stopwatch(threading.local):
    """CPU time of the wrapped functions, each without those that it calls; every thread has its own clock."""

    spent: ClassVar[Counter[str]] = Counter()  # of all threads: each part runs in one of them only

    def __init__(self) -> None:
        self._running: list[str] = []
        self._since = 0

    def enter(self, part: str) -> None:
        self._switch()
        self._running.append(part)

    def leave(self) -> None:
        self._switch()
        self._running.pop()

    def _switch(self) -> None:
        now = time.thread_time_ns()
        if self._running:
            self.spent[self._running[-1]] += now - self._since
        self._since = now

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            self.enter(part)
            try:
                result = function(*args, **options)
                return _step(result) if asyncio.iscoroutine(result) else result
            finally:
                self.leave()

        return wraps(function)(timed) if not isinstance(function, type) else timed


def _step(work: Coroutine[Any, Any, Any]) -> Any:
    """The awaitable result of an `async def` that never waits, computed now."""
    try:
        work.send(None)
    except StopIteration as end:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result(end.value)
        return done
    raise AssertionError("the environment waits for something")


@contextmanager
def timed_parts(watch: Stopwatch) -> Iterator[None]:
    """Measures the parts while it is open."""
    originals = [(owner, name, owner.__dict__[name]) for methods in PARTS.values() for owner, name in methods]
    for part, methods in PARTS.items():
        for owner, name in methods:
            found = owner.__dict__[name]
            getter = isinstance(found, property)
            timed = watch.around(part, found.fget if getter else found)
            setattr(owner, name, property(timed) if getter else timed)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


class Instant:
    """A token engine whose answers are fixed: for each episode, one after the other."""

    policy = "fixed"

    def __init__(self, answers: dict[str, list[list[int]]]) -> None:
        self.answers = answers
        self._turns: Counter[str] = Counter()

    async def generate(self, episode: str, prompt_ids: list[int], **_: Any) -> Generated:
        assert prompt_ids
        await asyncio.sleep(0)  # as if the answer came from another thread
        ids = self.answers[episode][self._turns[episode]]
        self._turns[episode] += 1
        return Generated(ids, [-0.5] * len(ids), "stop")

    async def generate_each(
        self, episodes: Sequence[str], prompt_ids: list[int], **_: Any
    ) -> AsyncGenerator[tuple[list[int], Generated]]:
        assert prompt_ids
        await asyncio.sleep(0)
        places: dict[tuple[int, ...], list[int]] = {}
        for place, name in enumerate(episodes):
            places.setdefault(tuple(self.answers[name][self._turns[name]]), []).append(place)
            self._turns[name] += 1
        for ids, mine in places.items():
            yield mine, Generated(list(ids), [-0.5] * len(ids), "stop")

    def release(self, episode: str) -> None:
        del self._turns[episode]

    async def close(self) -> None:
        return


async def replies(task: Task, seed: int, turns: int, alike: int) -> list[str]:
    """What an agent could say in this game: random possible moves, the first of them the same in all attempts."""
    environment = Household(task)
    await environment.start()
    said = []
    for turn in range(turns):
        rng = random.Random(f"{task.id if turn < alike else seed} {turn}")
        moves = [move for move in environment.choices() if move.startswith(("go", "open", "examine", "take", "look"))]
        said.append(environment.say(rng.choice(moves), THOUGHT))
        await environment.step(said[-1])
    return said


def play(template: ChatTemplate, wanted: list[Attempt], answers: dict[str, list[list[int]]], turns: int) -> int:
    """Plays every attempt and records it; the number of turns."""
    sampling, limits = SamplingConfig(), LimitsConfig(max_turns=turns, max_repeats=0, max_errors=0)
    with tempfile.TemporaryDirectory() as folder:
        config = CollectConfig(environment="household", model="smollm2", output=Path(folder) / "out")
        with Collection(config) as collection:
            agent = ModelAgent(TemplateEngine(Instant(answers), template, sampling))
            tally = asyncio.run(
                collect(
                    LocalRunner.of(Household, agent, limits),
                    wanted,
                    collection.add_in_thread,
                    concurrency=len(wanted),
                    retries=0,
                )
            )
    assert not tally.lost, tally.lost
    return tally.turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--chat-template", type=Path, help="a Jinja file instead of the model's own template")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--turns", type=int, default=17)
    parser.add_argument("--alike", type=int, default=0, help="the turns in which attempts at a task say the same")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--title", default="")
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    options = parser.parse_args()
    template = load_template(options.model, options.chat_template)
    tasks = list(islice(Household.tasks(Household.Options(claim=True)), max(options.episodes // 8, 1)))
    wanted = list(islice(attempts(tasks, 8, 0), options.episodes))
    answers = {}
    for attempt in wanted:
        said = asyncio.run(replies(attempt.task, attempt.seed, options.turns, options.alike))
        answers[attempt.id] = [template.encode_answer(text) for text in said]

    whole, parts = [], []
    play(template, wanted[:8], answers, options.turns)
    for _ in range(options.repeat):
        begin = time.process_time()
        turns = play(template, wanted, answers, options.turns)
        whole.append((time.process_time() - begin) / turns * 1e3)
        watch = Stopwatch()
        Stopwatch.spent = Counter()
        with timed_parts(watch):
            begin = time.process_time()
            play(template, wanted, answers, options.turns)
            watch.spent["the rest: event loop, time limits"] = int(
                (time.process_time() - begin) * 1e9 - watch.spent.total()
            )
        parts.append(watch.spent)
    rows = [[part, f"{statistics.median(one[part] for one in parts) / turns / 1e6:.3f}"] for part in parts[0]]
    rows.sort(key=lambda row: -float(row[1]))
    reply_tokens = statistics.mean(len(ids) for said in answers.values() for ids in said)
    text = (
        f"## {options.title or options.model}: {len(wanted)} episodes of {options.turns} turns, "
        f"{reply_tokens:.0f} tokens each, the first {options.alike} turns alike\n\n{machine()}.\n\n"
        f"**{statistics.median(whole):.3f} ms of CPU time per turn** (without the stopwatch; "
        f"{', '.join(f'{one:.3f}' for one in sorted(whole))}).\n\n" + table(["part", "ms per turn"], rows) + "\n"
    )
    print(text)
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
