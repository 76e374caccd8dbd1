"""Whether two trees of the source train to the same bits: a check for a change that only moves code.

    python benchmarks/same_bits.py record before.json     # on the tree before the change
    python benchmarks/same_bits.py compare before.json    # on the tree after it

Short runs with `tiny` of every method, online and on file, of a population and of a recipe,
all through the command line. What is compared is the SHA-256 of every tensor file of the
trained models, and of the episodes that were played. Both must be made on the same machine:
CPUs of different kinds round differently.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
LETTERS = """
from bough import Environment, Observation, Task


class Letters(Environment):
    \"\"\"The reward is the share of vowels.\"\"\"

    @classmethod
    def tasks(cls, options, *, split="train", seed=0):
        for number in range(10_000):
            yield Task(id=f"{split}-{seed}-{number}", data={"word": chr(97 + number % 26)})

    def __init__(self, task):
        self.word, self.turns = task.data["word"], 0

    async def start(self):
        return Observation.say(f"Write vowels. {self.word}")

    async def step(self, reply):
        self.turns += 1
        share = sum(letter in "aeiou" for letter in reply) / max(len(reply), 1)
        if self.turns == 2:
            return Observation.end("Thanks.", reward=share, success=share > 0.3)
        return Observation.say("More.")
"""
RECIPE = """
name: chain
model: tiny
defaults:
  environment: {name: household}
  limits: {max_turns: 4}
  sampling: {max_new_tokens: 8}
stages:
  - collect: {name: demonstrations, model: expert, tasks: 6}
  - demos: {}
  - sft: {max_steps: 3, batch_size: 2, learning_rate: 1.0e-3}
  - eval: {name: after-sft, tasks: 4}
"""
TRAINED = "--model tiny --learning-rate 1e-2 --batch-size 2 --lora-dropout 0.1"
PLAYED = "--environment letters.py:Letters --max-turns 2 --max-new-tokens 6 --group-size 4 --no-watch"
DATA = {"sft": "household.jsonl", "dpo": "household-pairs.jsonl"}
RUNS = {
    "collect": "collect --model tiny --environment letters.py:Letters --tasks 4 --attempts 3 --max-new-tokens 6",
    "expert": "collect --model expert --environment household --tasks 6",
    "sft": f"sft {TRAINED} --train-file household.jsonl --max-steps 4",
    "sft-all-weights": "sft --model tiny --no-use-lora --train-file household.jsonl --max-steps 3 --batch-size 2",
    "dpo": f"dpo {TRAINED} --train-file household-pairs.jsonl --max-steps 4",
    "ipo": f"dpo {TRAINED} --loss-type ipo --train-file household-pairs.jsonl --max-steps 3 --token-budget 1024",
    "kto": f"dpo {TRAINED} --loss-type kto --train-file household-pairs.jsonl --max-steps 3",
    "grpo": f"grpo {TRAINED} --train-file groups.jsonl --max-steps 3",
    "grpo-online": f"grpo {TRAINED} {PLAYED} --max-steps 4",
    "grpo-stale": f"grpo {TRAINED} {PLAYED} --max-steps 4 --advantage state",
    "distill": f"distill {TRAINED} --teacher runs/sft-all-weights/final --train-file household.jsonl --max-steps 3",
    "distill-online": f"distill {TRAINED} --teacher runs/sft-all-weights/final {PLAYED} --max-steps 3",
    "evolve": "evolve --model tiny --method dpo --train-file household-pairs.jsonl --mutate learning_rate=1e-3..1e-1 "
    "--population-size 3 --generations 2 --steps 2",
    "recipe": "run chain.yaml",
}
AFTER = {"distill": "sft-all-weights", "distill-online": "sft-all-weights", "grpo": "collect"}


def record(folder: Path) -> dict[str, str]:
    """Digests of all that the runs wrote, by name; two runs at a time."""
    for name in DATA.values():
        (folder / name).write_bytes((ROOT / "examples" / name).read_bytes())
    (folder / "letters.py").write_text(LETTERS)
    (folder / "chain.yaml").write_text(RECIPE)
    found: dict[str, str] = {}
    first = [name for name in RUNS if name not in AFTER]
    with ThreadPoolExecutor(2) as pool:
        for names in (first, list(AFTER)):
            for digests in pool.map(lambda name: run(name, folder), names):
                found |= digests
    return found


def run(name: str, folder: Path) -> dict[str, str]:
    """Runs one command and returns the digests of its weights and episodes."""
    words = RUNS[name].split()
    output = folder / "runs" / name
    flag = "--output" if words[0] == "collect" else "--output-dir"
    if name == "grpo":
        call(["groups", "runs/collect", "-o", "groups.jsonl"], folder)
    call([*words, flag, str(output)], folder)
    found = {}
    for path in sorted(output.rglob("*")):
        # An evaluated model's folder is named after its path, which differs from run to run.
        shown = re.sub(r"/models/[^/]+", "/models/MODEL", str(path.relative_to(folder / "runs")))
        if path.suffix == ".safetensors" and "checkpoints" not in path.parts:
            found[shown] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "trajectories.jsonl":
            found[shown] = hashlib.sha256(episodes(path).encode()).hexdigest()
    if not found:
        raise SystemExit(f"{name} wrote neither weights nor episodes")
    print(f"{name}: {len(found)} files", file=sys.stderr, flush=True)
    return found


def episodes(path: Path) -> str:
    """The text and tokens of the episodes, without what depends on the clock, in the order of their ids."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for turn in (turn for row in rows for turn in row["turns"]):
        (turn.get("call") or {}).pop("policy", None)  # a path, which differs from run to run
    return json.dumps(sorted(json.dumps([row["task"], row["turns"]], sort_keys=True) for row in rows))


def call(words: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "bough", *words], cwd=folder, capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"bough {' '.join(words)} failed:\n{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = record(Path(folder))
    if arguments.action == "record":
        arguments.file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} files of {len(RUNS)} runs recorded in {arguments.file}")
        return
    before = json.loads(arguments.file.read_text())
    differ = sorted(name for name in before.keys() | found.keys() if before.get(name) != found.get(name))
    print(f"{len(before) - len(differ)} of {len(before)} files are the same to the last bit")
    if differ:
        raise SystemExit("\n".join(["Different or missing:", *(f"  {name}" for name in differ)]))


if __name__ == "__main__":
    main()
