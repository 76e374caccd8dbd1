"""What the hostile trials share: playing a hostile episode beside an honest one, and a table of what became of them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import logging
import platform
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

# A trial that takes longer than this hangs; no step of one may take longer than a few seconds.
LIMIT_S = 120.0
# How a case ends: its episode was lost with a reason or kept as what it was, the input was refused, all of its
# episodes held, or a promise was broken.
BROKEN = "BROKEN"
KINDS = ("lost", "kept", "refused", "held", BROKEN)


@dataclass(frozen=True)
class Trial:
    """The environment's name and what the agent replies, the last reply for ever."""

    environment: str
    reply: str
    more: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    honest_replies: tuple[str, ...] = ()
    # Whether the agent has done what was asked, whatever the environment said.
    may_win: bool = False
    more_still: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def replies(self) -> list[str]:
        return [self.reply, *([self.more] if self.more else []), *self.more_still]


class ScriptedAgent:
    """Gives the first episode its replies, and later ones the honest replies where there are some."""

    name = "scripted"

    def __init__(self, trial: Trial) -> None:
        self.trial, self.entered = trial, 0

    def enter(self, environment: Any, *, episode: str, seed: int) -> Any:  # noqa: ARG002
        self.entered += 1
        return _Chat([*(self.trial.honest_replies if self.entered > 1 else ())] or self.trial.replies)

    async def close(self) -> None:
        return


class _Chat:
    def __init__(self, replies: list[str]) -> None:
        self.replies = list(replies)

    async def answer(self, messages: list[Any], tools: list[dict[str, Any]]) -> Any:  # noqa: ARG002
        from bough.engines.base import Answer
        from bough.types import Message

        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return Answer(Message(role="assistant", content=reply), None, "stop")

    def close(self) -> None:
        return


def play(opened: AbstractContextManager[Trial], step_s: float) -> str:
    """Plays two episodes, the first of which meets the enemy; what became of it, or how the promise was broken."""
    from bough.config.groups import LimitsConfig
    from bough.environments.base import configured
    from bough.environments.registry import find
    from bough.rollouts.collect import LocalRunner, attempts, collect
    from bough.types import Task, Trajectory

    kept: dict[str, Trajectory] = {}
    with opened as trial:
        tasks = [Task(id=name, seed=number, data=dict(trial.data)) for number, name in enumerate(("hostile", "honest"))]
        runner = LocalRunner.of(
            configured(find(trial.environment), trial.settings),
            ScriptedAgent(trial),
            LimitsConfig(max_turns=4, step_timeout_s=step_s),
        )
        tally = asyncio.run(
            collect(
                runner,
                attempts(tasks, 1, 0),
                lambda trajectory, _: kept.update({trajectory.task.id: written(trajectory)}),
                retries=0,
                concurrency=1,
            )
        )
    if "honest" not in kept or kept["honest"].success is not True:
        return f"BROKEN: the honest episode was not won: {tally.lost.get('honest#0')}"
    if "hostile" not in kept:
        return f"lost: {tally.lost['hostile#0']}"
    hostile = kept["hostile"]
    won = "BROKEN: won" if hostile.success and not trial.may_win else "kept"
    return f"{won}: success {hostile.success}, stop {hostile.stop}, outcome {hostile.rewards.get('outcome')}"


def written(trajectory: Any) -> Any:
    """A trajectory as it comes back from a file."""
    import tempfile
    from pathlib import Path

    from bough.data.reader import Reader
    from bough.data.writer import Writer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trajectories.jsonl"
        with Writer(path) as writer:
            writer.write(trajectory)
        [record] = Reader(path)
    return record


def main(title: str, about: str | None, cases: Mapping[str, Callable[[], str]]) -> int:
    """Runs the cases and prints how many of each kind ended how; the number of broken promises is the exit code."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--each", action="store_true", help="a line for each case")
    arguments = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    bad, slowest = [], 0.0
    for name, case in cases.items():
        if arguments.only not in name:
            continue
        said, seconds = _tried(case)
        slowest = max(slowest, seconds)
        kind = said.partition(": ")[0]
        counts.setdefault(name.partition(":")[0], Counter())[kind] += 1
        if arguments.each or kind == BROKEN:
            bad.append(f"- {name}: {_cell(said)} ({seconds:.1f} s)")
        print(f"{seconds:6.1f} s  {name}: {_cell(said)}", file=sys.stderr, flush=True)
    total = sum(counts.values(), Counter[str]())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    python = f"{platform.machine()}, Python {platform.python_version()}, {time.strftime('%F')}"
    print(f"`python -m benchmarks.hostile.{title}`: {python}; at most {slowest:.0f} s a case, {memory:,} MB\n")
    print("| against | cases | " + " | ".join(KINDS) + " |\n|" + "---|" * (len(KINDS) + 2))
    for group, found in [*counts.items(), ("all", total)]:
        print(f"| {group} | {found.total()} | " + " | ".join(str(found[kind]) for kind in KINDS) + " |")
    print("\n" + "".join(f"{line}\n" for line in bad))
    return total[BROKEN]


def _tried(case: Callable[[], str]) -> tuple[str, float]:
    from bough.errors import BoughError

    log, begin = io.StringIO(), time.monotonic()
    handler = logging.StreamHandler(log)
    handler.addFilter(lambda record: not record.name.startswith(("websockets.server", "asyncio")))  # the enemy's own
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # servers of the enemy print their own failures
            said = case()
    except BoughError as error:
        said = f"refused: {error}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"BROKEN: {type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
    finally:
        logging.getLogger().removeHandler(handler)
    seconds = time.monotonic() - begin
    if seconds > LIMIT_S:
        said = f"BROKEN: took {seconds:.0f} s: {said}"
    if "Traceback" in log.getvalue():
        said = f"BROKEN: a traceback was logged: {said}"
    return said, seconds


def _cell(text: str) -> str:
    shown = " ".join(text.split()).replace("|", "\\|")
    return "".join(one if one.isprintable() else "�" for one in shown)[:150]
