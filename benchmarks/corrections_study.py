"""Do corrections help a policy that imitates its expert well already, and what of them harms it?

    python -m benchmarks.corrections_study DEMONSTRATIONS FRESH --games data/alfworld --limit-s 600

One SFT of SmolLM2 on an expert's household episodes, and from it, side by side, arms of two rounds each:

| arm | a round learns from |
|---|---|
| every-label | own play, labelled by the expert at every turn; of earlier data, that of the round before |
| mended | own play without labels that only order a search otherwise, or repeat; of earlier data, all of it |
| mended-slow | the same with a third of the learning rate |
| control | as many fresh demonstrations, from FRESH |
| grpo | eight batches of online GRPO instead of rounds |

Each is evaluated greedily on official games (`seen`) and on generated ones (`unseen`), and sampled on other generated
ones. After `--limit-s` seconds everything is stopped; the same command resumes. The table of what has finished is
written to `--results`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from bough.chat.tool_calls import Reply
from bough.evaluation.comparison import compare
from bough.evaluation.intervals import wilson
from bough.evaluation.results import ModelResult, Results
from bough.files import read_json
from bough.worlds.household.environment import Household

# The types with two searches twice as often as the others, as in the recipe `alfworld`.
TYPES = (
    "types=[look_at_obj_in_light,pick_two_obj_and_place,pick_and_place_simple,pick_clean_then_place_in_recep,"
    "look_at_obj_in_light,pick_two_obj_and_place,pick_heat_then_place_in_recep,pick_cool_then_place_in_recep]"
)
Words = list[str | Path]
ARMS = ("every-label", "mended", "mended-slow", "control", "grpo")
ROUNDS = (1, 2)
# Own episodes of a round, and the part of its episodes that is earlier data.
EPISODES, MIXED = 1000, 0.3


class EveryLabel(Household):
    """The household that accepts no reply but the expert's."""

    def accepts(self, reply: Reply) -> bool:  # noqa: ARG002
        return False


class StoppedError(Exception):
    """The time is over."""


@dataclass
class Study:
    """The folder of a study, and its settings."""

    folder: Path
    model: str
    demonstrations: Path
    fresh: Path
    games: Path | None
    gpu_share: float
    compile: bool
    scale: float
    end: float
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, episodes: int) -> int:
        return max(2, round(episodes * self.scale))

    def bough(self, arm: str, done: Path, *words: str | Path, share: float = 1.0) -> None:
        """Runs a command, unless what it makes is there. `share` is its part of the GPU in units of the usual one."""
        if done.exists():
            return
        command = [sys.executable, "-m", "bough", *map(str, words)]
        part = min(0.9, self.gpu_share * share)
        env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{part:.3f}"}
        log = self.folder / "logs" / f"{arm}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        with log.open("ab") as said:
            said.write(f"\n$ bough {' '.join(map(str, words))}\n".encode())
            said.flush()
            with self.lock:
                if begin > self.end:
                    raise StoppedError
                child = subprocess.Popen(command, stdout=said, stderr=said, env=env)
                self.running.append(child)
            code = child.wait()
        with self.lock:
            self.running.remove(child)
            took = time.monotonic() - begin
            print(f"{took:6.1f} s  {arm}: {words[0]} → {done}  (exit code {code})", flush=True)
            with (self.folder / "seconds.txt").open("a") as file:
                file.write(f"{took:.1f}\t{arm}\t{words[0]}\t{done.relative_to(self.folder)}\t{code}\n")
        if code:
            raise StoppedError

    def stop(self) -> None:
        with self.lock:
            self.end = 0
            for child in self.running:
                child.terminate()

    def sft(self, arm: str, name: str, start: str | Path, data: Path, rate: str, share: float) -> Path:
        made = self.folder / name
        words: Words = ["sft", "--model", start, "--no-use-lora", "--train-file", data, "--num-epochs", "1"]
        words += ["--batch-size", "16", "--learning-rate", rate, "--output-dir", made, "--save-steps", "1000"]
        words += ["--token-budget", "24576" if share > 1 else "12288", *(["--compile"] if self.compile else [])]
        words += ["--resume"] if made.exists() else []
        self.bough(arm, made / "final" / "config.json", *words, share=share)
        return made / "final"

    def play(self, arm: str, name: str, model: Path, seed: int) -> Path:
        made = self.folder / name
        words: Words = ["collect", "--model", model, "--environment", "household", "--options", TYPES, "--rescore", "0"]
        words += ["--tasks", f"{self.count(EPISODES)}", "--seed", f"{seed}", "--output", made, *LIMITS]
        self.bough(arm, made / "report.json", *words)
        return made

    def measure(self, arm: str, name: str, model: Path) -> None:
        """Greedily on official and on generated games, and sampled on other generated ones."""
        usual: Words = ["eval", "--model", model, "--environment", "household", *LIMITS]
        official = ["--options", f"games={self.games}"] if self.games else []
        for kind, words in (
            ("unseen", ["--tasks", f"{self.count(180)}"]),
            ("seen", ["--split", "seen", "--tasks", f"{self.count(140)}", *official]),
            ("sampled", ["--tasks", f"{self.count(500)}", "--seed", "7", "--temperature", "1"]),
        ):
            made = self.folder / "evaluations" / f"{name}-{kind}"
            self.bough(arm, made / "results.json", *usual, *words, "--output", made)


LIMITS = ("--max-turns", "50", "--max-new-tokens", "64", "--concurrency", "256")


def lead(study: Study) -> Path:
    """The SFT that all arms start from, and its own play of the first round."""
    trained = study.sft("sft", "sft", study.model, study.demonstrations, "3e-4", share=3.0)
    study.play("sft", "play-1", trained, seed=0)
    return trained


def arm(study: Study, name: str, start: Path) -> None:
    """The rounds of one arm, each with its evaluations."""
    if name == "grpo":
        made = study.folder / "grpo"
        words: Words = ["grpo", "--model", start, "--no-use-lora", "--environment", "household", *LIMITS]
        words += ["--seed", "500"]
        words += ["--max-steps", f"{study.count(8)}", "--batch-size", f"{study.count(16)}", "--group-size", "8"]
        words += ["--learning-rate", "1e-5", "--lr-scheduler", "constant", "--warmup-ratio", "0", "--no-watch"]
        words += ["--advantage", "graph", "--token-budget", "12288", "--save-steps", "1000", "--output-dir", made]
        words += ["--resume"] if made.exists() else []
        study.bough(name, made / "final" / "config.json", *words, share=1.6)
        study.measure(name, name, made / "final")
        return
    model, rate = start, "3e-5" if name == "mended-slow" else "1e-4"
    earlier = [study.demonstrations]
    for number in ROUNDS:
        if name == "control":
            data = study.folder / f"fresh-{number}.jsonl"
            total = round(study.count(EPISODES) / (1 - MIXED))
            _slice(study.fresh, data, total * (number - 1), total)
        else:
            played = study.play(name, f"{name}-play-{number}", model, number - 1) if number > 1 else None
            data = _corrected(study, name, number, played or study.folder / "play-1", earlier)
            earlier = [data] if name == "every-label" else [*earlier, data]
        model = study.sft(name, f"{name}-{number}", model, data, rate, share=1.0)
        study.measure(name, f"{name}-{number}", model)


def _corrected(study: Study, name: str, number: int, played: Path, earlier: Sequence[Path]) -> Path:
    data = study.folder / f"{name}-{number}.jsonl"
    words: Words = ["corrections", played, "--by", "expert", "--where", "everywhere", "--mix", *earlier]
    words += ["--mix-share", f"{MIXED}", "--concurrency", "64", "--output", data, "--overwrite"]
    if name == "every-label":
        words += ["--environment", f"{__spec__.name if __spec__ else __name__}:{EveryLabel.__name__}"]
        words += ["--max-same-labels", "1000"]
    study.bough(name, data.with_suffix(".ledger.json"), *words)
    return data


def _slice(source: Path, made: Path, first: int, count: int) -> None:
    with source.open() as lines, made.open("w") as file:
        file.writelines(islice(lines, first, first + count))


def table(folder: Path) -> str:
    """What has finished, as Markdown: every evaluation against the SFT on the same games, and every round's labels."""
    rows = ["| evaluation | model | won | success (95%) | better, worse | p | loops | invalid replies | turns |"]
    rows.append("|" + " --- |" * 9)
    for kind in ("seen", "unseen", "sampled"):
        found = dict(_measured(folder, kind))
        if "sft" not in found:
            continue
        pairs = compare([found.pop("sft"), *found.values()]) if len(found) > 1 else []
        against = {one.second: (f"{one.better}, {one.worse}", f"{one.adjusted_p:.2g}") for one in pairs}
        for name, result in _measured(folder, kind):
            rows.append("| " + " | ".join((kind, name, *_numbers(result, against.get(name, ("", ""))))) + " |")
    labels = ["| round | same action | accepted | other action | trained turns | dropped | episodes mixed in |"]
    labels.append("|" + " --- |" * 7)
    for path in sorted(folder.glob("*.ledger.json")):
        said = read_json(path)
        turns, mixed = said["ledgers"][1], said["ledgers"][2]
        given = [str(said["labels"].get(one, 0)) for one in ("same action", "accepted", "other action")]
        dropped = ", ".join(f"{count} {why}" for why, count in turns["dropped"].items())
        cells = (path.name.removesuffix(".ledger.json"), *given, str(turns["kept"]), dropped, str(mixed["kept"]))
        labels.append("| " + " | ".join(cells) + " |")
    return "\n".join((*rows, "", "p: McNemar's, corrected by Holm's method within an evaluation.", "", *labels)) + "\n"


def _measured(folder: Path, kind: str) -> Iterator[tuple[str, ModelResult]]:
    names = ["sft", *(f"{arm}-{number}" for arm in ARMS[:-1] for number in ROUNDS), "grpo"]
    for name in names:
        path = folder / "evaluations" / f"{name}-{kind}" / "results.json"
        if path.exists():
            yield name, Results.read(path).models[0].model_copy(update={"name": name})


def _numbers(result: ModelResult, against: tuple[str, str]) -> tuple[str, ...]:
    episodes, won = len(result.outcomes), sum(one.success is True for one in result.outcomes)
    low, high = wilson(won, episodes)
    turns = sum(one.turns for one in result.outcomes)
    errors = sum((Counter(one.errors) for one in result.outcomes), Counter())
    loops = sum(bool((one.mistakes or {}).get("loop")) for one in result.outcomes)
    rate = f"{won / episodes:.1%} ({100 * low:.1f}–{100 * high:.1f})"
    return f"{won} of {episodes}", rate, *against, f"{loops}", f"{errors.total()} of {turns}", f"{turns / episodes:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demonstrations", type=Path, help="the expert's episodes for the SFT")
    parser.add_argument("fresh", type=Path, help="other episodes of the expert, for the control")
    parser.add_argument("--games", type=Path, help="the folder of valid_seen (default: generated games)")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--folder", type=Path, default=Path("runs/corrections-study"))
    parser.add_argument("--results", type=Path, default=Path("runs/corrections-study/corrections.md"))
    parser.add_argument("--limit-s", type=float, default=600)
    parser.add_argument("--gpu-share", type=float, default=0.13, help="of an arm's process; SFT has three times it")
    parser.add_argument("--compile", action="store_true", help="compile the layers in SFT")
    parser.add_argument("--scale", type=float, default=1.0, help="of all numbers of episodes, for a trial")
    given = parser.parse_args()
    study = Study(
        given.folder, given.model, given.demonstrations, given.fresh, given.games, given.gpu_share, given.compile,
        given.scale, time.monotonic() + given.limit_s,
    )  # fmt: skip
    clock = threading.Timer(given.limit_s, study.stop)
    clock.daemon = True
    clock.start()
    stopped = run(study, given.arms)
    clock.cancel()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.write_text(table(given.folder))
    print(table(given.folder))
    sys.exit(3 if stopped else 0)


def run(study: Study, arms: Sequence[str]) -> list[str]:
    """Plays all arms side by side; the names of those that did not come to their end."""
    try:
        start = lead(study)
    except StoppedError:
        return list(arms)
    jobs = {"sft": lambda: study.measure("sft", "sft", start)}
    jobs |= {name: lambda name=name: arm(study, name, start) for name in arms}  # type: ignore[misc]
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = {name: pool.submit(job) for name, job in jobs.items()}
    failed = [name for name, future in futures.items() if future.exception() is not None]
    for name in failed:
        if not isinstance(error := futures[name].exception(), StoppedError):
            print(f"{name}: {error!r}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    main()
