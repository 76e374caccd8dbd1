"""Kills, signals, folders that cannot be used, and clocks that jump: what each leaves of a command's work.

    python -m benchmarks.hostile.kills > benchmarks/results/hostile-kills.md
    python -m benchmarks.hostile.kills --only signals        # one table

Commands run in processes that are forked from this one, which has loaded everything, with the model `tiny`.
A trial that is not as it should be ends in a line below its table.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.online.killed_stream import check, finished, lines
from tests.sandbox.as_user import NOBODY, show

from bough import bit_exact
from bough.sandbox.inside import kernel

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
RECIPE = """\
name: base
model: tiny
defaults: {environment: household, max_turns: 6, max_new_tokens: 4}
stages:
  - collect: {name: expert, model: expert, tasks: 2}
  - demos:
  - sft: {max_steps: 60, max_length: 512, save_steps: 99, logging_steps: 1}
  - eval: {tasks: 2}
"""
SFT = ["sft", "--model", "tiny", "--train-file", "../demos.jsonl", "--max-length", "512", "--logging-steps", "1",
       "--output-dir", "out"]  # fmt: skip
EVOLVE = ["evolve", "--model", "tiny", "--method", "sft", "--train-file", "../demos.jsonl", "--test-size", "0.25",
          "--population-size", "2", "--mutate", "learning_rate=1e-4..1e-2",
          "--output-dir", "out"]  # fmt: skip
SWEEP = ["sweep", "../recipe.yaml", "--vary", "sft.learning_rate=1e-3,1e-4", "--seeds", "1", "-o", "out"]
PLAYED = ["--model", "tiny", "--environment", "household", "--max-new-tokens", "8", "--output", "out"]
GRPO = ["grpo", "--model", "tiny", "--environment", "tests.online.letters:Uneven", "--max-steps", "8",
        "--batch-size", "2", "--group-size", "4", "--max-new-tokens", "8", "--learning-rate", "0.005",
        "--logging-steps", "1", "--save-steps", "2", "--no-watch", "--resume", "--output-dir", "out"]  # fmt: skip
problems: list[str] = []


class Command:
    """`bough WORDS` in a folder, in a forked process in a session of its own."""

    def __init__(self, folder: Path, words: list[str], before: Callable[[], None] = lambda: None) -> None:
        self.folder, self.words, self._log = folder, words, folder.parent / f"{folder.name}.log"
        self._log.unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            self._run(before)

    def _run(self, before: Callable[[], None]) -> None:
        from bough.cli import main

        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        os.chdir(self.folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (1, 2):
            os.dup2(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        before()
        code = main(self.words)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)

    @property
    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def until(self, reached: Callable[[], bool]) -> None:
        """Waits until something is reached or the process has ended."""
        end = time.monotonic() + LIMIT_S
        while not self.ended and not reached():
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)

    def code(self) -> int:
        """The exit code; minus the number of a signal that ended it."""
        self.until(lambda: False)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def expect(where: str, fine: bool, found: object) -> bool:
    if not fine:
        problems.append(f"{where}: {str(found)[-400:]!r}")
        print(problems[-1], file=sys.stderr)
    return fine


def records(path: str) -> Callable[[Path], int]:
    """Counts the whole lines of the files that match."""
    return lambda folder: sum(file.read_bytes().count(b"\n") for file in folder.glob(path))


def printed(folder: Path) -> int:
    """Counts the lines that the command in a folder has printed."""
    return records(f"{folder.name}.log")(folder.parent)


def kills(base: Path) -> None:
    """SIGKILL in steps 3 to 6 of 8 of online GRPO; resumed until it is done."""
    print("| online GRPO | runs | kills | in steps | finished episodes noted | played again | checkpoints lost |"
          " final weights |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for staleness in ("0", "1"):
        words = [*GRPO, "--max-staleness", staleness]
        whole = base / f"whole-{staleness}"
        whole.mkdir()
        expect(f"whole {staleness}", Command(whole, words).code() == 0, "failed")
        wanted, killed, same, lost, kept, replayed = weights(whole), list[int](), 0, 0, 0, 0
        runs = 5
        for seed in range(runs):
            folder, rng = base / f"killed-{staleness}-{seed}", random.Random(seed)
            folder.mkdir()
            noted, saved = {}, set()
            for at in [*sorted(rng.choices(range(3, 7), k=4)), None]:
                child = Command(folder, words)
                if at is not None:
                    child.until(lambda: steps(folder) >= at - 1)  # noqa: B023
                    time.sleep(rng.uniform(0, 0.3))
                    os.kill(child.pid, signal.SIGKILL)
                code = child.code()
                if code == -signal.SIGKILL:
                    killed.append(steps(folder) + 1)
                else:
                    expect(f"grpo {staleness} seed {seed}", code == 0, child.said)
                noted |= finished(folder / "out")
                newest = max(saved, default=0)
                saved = {int(path.name[5:]) for path in (folder / "out/checkpoints").glob("step-*")}
                lost += max(saved, default=0) < newest
            same += weights(folder) == wanted
            try:
                kept += check(folder / "out", noted)
            except AssertionError as error:
                replayed += 1
                expect(f"grpo {staleness} seed {seed}", False, error)
        result = f"{same} of {runs} with the same bits" if staleness == "0" else "not promised to be the same"
        expect(f"grpo {staleness}", (staleness != "0" or same == runs) and not lost, f"{same} same, {lost} lost")
        print(f"| `--max-staleness {staleness}` | {runs} | {len(killed)} | {min(killed)}–{max(killed)} |"
              f" {kept} | {replayed} | {lost} | {result} |")  # fmt: skip


def weights(folder: Path) -> bytes:
    return (folder / "out/final/adapter_model.safetensors").read_bytes()


def steps(folder: Path) -> int:
    return max([0, *(line["step"] for line in lines(folder / "out/metrics.jsonl"))])


# A command, what its finished work is counted by, and what resumes it (None: nothing to resume).
SIGNALLED: dict[str, tuple[list[str], Callable[[Path], int], list[str] | None]] = {
    "sft": ([*SFT, "--max-steps", "60"], records("out/metrics.jsonl"), ["--resume"]),
    "evolve": ([*EVOLVE, "--steps", "3", "--generations", "6"], records("out/lineage.jsonl"), ["--resume"]),
    "run": (["run", "../recipe.yaml", "-o", "out"], records("out/03-sft/metrics.jsonl"), []),
    "sweep --jobs 2": (
        [*SWEEP, "--jobs", "2"],
        records("out/runs/*/03-sft/metrics.jsonl"), [],
    ),
    "collect": (["collect", *PLAYED, "--tasks", "12", "--concurrency", "2"], records("out/trajectories.jsonl"), []),
    "eval": (["eval", *PLAYED, "--tasks", "12", "--concurrency", "2"], records("out/models/*/trajectories.jsonl"), []),
    "serve": (["serve", "--model", "tiny", "--record", "out"], printed, None),
}  # fmt: skip
# What is sent, to the process or, as a terminal does, to its group.
WAYS = {
    "Ctrl-C": ([signal.SIGINT], os.killpg),
    "Ctrl-C twice": ([signal.SIGINT, signal.SIGINT], os.killpg),
    "SIGTERM": ([signal.SIGTERM], os.kill),
}


def signals(base: Path) -> None:
    """After two records (steps, members, episodes) of each command; then the command is resumed to its end."""
    print("| command | signal | exit code | seconds | finished before, kept | processes left | resumed |\n"
          "|---|---|---|---|---|---|---|")  # fmt: skip
    for name, (words, done, resume) in SIGNALLED.items():
        for way, (numbers, send) in WAYS.items():
            folder = base / f"{name} {way}".replace(" ", "-").lower()
            folder.mkdir()
            child = Command(folder, words)
            child.until(lambda: done(folder) >= 2)  # noqa: B023
            begun, before = time.monotonic(), done(folder)
            family = psutil.Process(child.pid).children(recursive=True)
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    send(child.pid, number)
                time.sleep(0.05)
            code, took_s = child.code(), time.monotonic() - begun
            psutil.wait_procs(family, timeout=5)
            left = [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
            kept, said = done(folder), child.said
            resumed = "–"
            if resume is not None:
                again = Command(folder, [*words, *resume])
                resumed = "yes" if again.code() == 0 else "no"
                expect(f"{name}, {way}, resumed", resumed == "yes", again.said)
            fine = code == (0 if name == "serve" else 130) and not left and kept >= before and "Traceback" not in said
            fine = fine and (name == "serve" or bool(re.search("^(Stopped|Interrupted)", said, re.MULTILINE)))
            expect(f"{name}, {way}", fine, (code, left, before, kept, said))
            row = (f"`bough {name}`", way, code, f"{took_s:.1f}", f"{before}, {kept}", len(left), resumed)
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


# Commands that write; with a file or folder that they cannot use, each must say so, with its path.
WRITING = {
    "sft": [*SFT, "--max-steps", "2"],
    "evolve": [*EVOLVE, "--steps", "1", "--generations", "1"],
    "grpo": GRPO,
    "run": ["run", "../recipe.yaml", "-o", "out"],
    "sweep": SWEEP,
    "collect": ["collect", *PLAYED, "--tasks", "2"],
    "eval": ["eval", *PLAYED, "--tasks", "2"],
    "demos": ["demos", "../first/out", "-o", "out/demos.jsonl"],
    "data convert": ["data", "convert", "../demos.jsonl", "--to", "trl", "-o", "out/trl.jsonl"],
    "merge": ["merge", "../first/out/final", "-o", "out/merged"],
    "serve": ["serve", "--model", "tiny", "--record", "out"],
}
READING = {
    "sft": ["sft", "--model", "tiny", "--train-file", "secret.jsonl", "--on-error", "skip", "--output-dir", "out"],
    "data stats": ["data", "stats", "secret.jsonl"],
    "data show": ["data", "show", "secret.jsonl"],
    "doctor": ["doctor", "secret.jsonl", "--model", "tiny"],
    "eval": ["eval", "--model", "tiny", "--eval-file", "secret.jsonl"],
    "collect": ["collect", *PLAYED, "--task-file", "secret.jsonl"],
}
CACHED = {name: WRITING[name] for name in ("sft", "collect", "serve")}


def folders(base: Path) -> None:
    """As an ordinary user; the full disk is a tmpfs of a page. A sentence with the path, and an exit code of 1 or 2."""

    def read_only(folder: Path) -> None:
        (folder / "out").mkdir()
        (folder / "out").chmod(0o555)

    def full(folder: Path) -> None:
        folder.chmod(0o777)
        kernel.mount("tmpfs", str(folder), "tmpfs", 0, "size=4k,mode=777")

    def secret(folder: Path) -> None:
        folder.chmod(0o777)
        shutil.copy(base / "demos.jsonl", folder / "secret.jsonl")
        (folder / "secret.jsonl").chmod(0o000)

    def cache_at(place: str | None) -> Callable[[], None]:
        def before() -> None:
            for name in ("BOUGH_CACHE", "HOME", "XDG_CACHE_HOME"):
                os.environ.pop(name, None)
            os.environ |= {} if place is None else {"BOUGH_CACHE": place}
            become(NOBODY if place is not None else 54_321)  # a number without a name, and so without a home

        return before

    (base / "closed").mkdir(0o555)
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    trials: dict[str, tuple[dict[str, list[str]], Callable[[Path], None], Callable[[], None]]] = {
        "output folder read-only": (WRITING, read_only, become),
        "disk full": ({key: words for key, words in WRITING.items() if key != "serve"}, full, become),
        "data file unreadable": (READING, secret, become),
        "cache folder read-only": (CACHED, lambda folder: folder.chmod(0o777), cache_at(str(base / "closed"))),
        "no home folder": (CACHED, lambda folder: folder.chmod(0o777), cache_at(None)),
    }
    named = re.compile(r"^(Error|.* failed).*(\bout\b|secret\.jsonl|closed|BOUGH_CACHE)", re.MULTILINE)
    print("| trouble | commands | as they should be | exit codes | for example |\n|---|---|---|---|---|")
    for number, (trouble, (commands, prepared, before)) in enumerate(trials.items()):
        good, codes, example = 0, set[int](), ""
        for name, words in commands.items():
            folder = base / f"{number}-{name.replace(' ', '-')}"
            folder.mkdir()
            prepared(folder)
            child = Command(folder, words, before)
            code, said = child.code(), child.said.replace(str(base), "…")
            fine = code in (1, 2) and bool(named.search(said)) and not re.search("Traceback|bug in Bough", said)
            good += expect(f"{trouble}, {name}", fine, (code, said))
            codes.add(code)
            example = example or next((line for line in said.splitlines() if line.startswith("Error")), "")
        shown = ", ".join(map(str, sorted(codes)))
        print(f"| {trouble} | {len(commands)} | {good} | {shown} | `{example}` |", flush=True)


def become(user: int = NOBODY) -> None:
    """Makes this process an ordinary user's, who can read Python wherever root has it."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    show(Path(os.path.realpath(sys.base_prefix)))
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def clocks(base: Path) -> None:
    """`time.time` jumps by up to a day, back or forth, at each call. The results must be those of a good clock."""
    played = [*PLAYED, "--tasks", "4", "--max-turns", "3"]
    commands: dict[str, tuple[list[str], str]] = {
        "sft": ([*SFT, "--max-steps", "2"], "out/final/adapter_model.safetensors"),
        "grpo": ([*GRPO, "--max-staleness", "0"], "out/final/adapter_model.safetensors"),
        "collect": (["collect", *played], "out/trajectories.jsonl"),
        "eval": (["eval", *played], "out/models/tiny/trajectories.jsonl"),
        "collect, interpreter": (
            ["collect", "--model", "expert", "--environment", "interpreter", "--tasks", "4", "--output", "out"],
            "out/trajectories.jsonl",
        ),
    }

    def jump() -> None:
        rng, right = random.Random(0), time.time
        time.time = lambda: right() + rng.uniform(-86_400, 86_400)

    print("| command | exit code | result |\n|---|---|---|")
    for name, (words, result) in commands.items():
        found, codes = [], []
        for way, before in (("good", lambda: None), ("bad", jump)):
            folder = base / f"{way}-{name.replace(', ', '-')}"
            folder.mkdir()
            child = Command(folder, words, before)
            codes.append(child.code())
            expect(f"{name}, {way} clock", codes[-1] == 0, child.said)
            found.append((folder / result).read_bytes() if (folder / result).exists() else b"")
        same = expect(f"{name}, clock", bool(found[0]) and found[0] == found[1], "another result")
        print(f"| `bough {name}` | {codes[1]} | {'the same bytes' if same else 'another'} |", flush=True)


TABLES = {"kills": kills, "signals": signals, "folders": folders, "clocks": clocks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, default=None)
    only = parser.parse_args().only
    begin = time.monotonic()
    prepare()
    print(f"`python -m benchmarks.hostile.kills`: {platform.machine()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        base = Path(folder)
        base.chmod(0o755)
        make_data(base)
        for name, table in TABLES.items():
            if only in (None, name):
                print(f"\n## {name.capitalize()}\n\n{table.__doc__}\n")
                table(base)
    print(f"\n{len(problems)} trials were not as they should be; {time.monotonic() - begin:.0f} s.")
    for problem in problems:
        print(f"- {problem}")
    sys.exit(min(len(problems), 1))


def prepare() -> None:
    """Loads what every command needs, for its forks."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    os.environ["COLUMNS"] = "200"
    bit_exact.prepare()  # as `bough` does, before torch loads
    import peft
    import torch
    import transformers

    assert peft and transformers
    torch.set_num_threads(1)


def make_data(base: Path) -> None:
    """Demonstrations, a recipe, a trained adapter, and a cache with the model in it."""
    os.environ["BOUGH_CACHE"] = str(base / "cache")
    (base / "recipe.yaml").write_text(RECIPE)
    (base / "first").mkdir()
    for words in (
        ["collect", "--environment", "household", "--model", "expert", "--tasks", "6", "--output", "out"],
        ["demos", "out", "-o", "../demos.jsonl"],
        [*SFT, "--max-steps", "1"],
    ):
        child = Command(base / "first", words)
        assert child.code() == 0, child.said


if __name__ == "__main__":
    main()
