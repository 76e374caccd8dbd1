"""The cases: a number gives a command with its files, the same on every machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import yaml
from benchmarks.hostile.mutations import (
    TEMPLATES,
    WORDS,
    YAML,
    change,
    changed_json,
    changed_lines,
    damaged_file,
    flip,
    odd_path,
)

from bough.commands import table
from bough.config.base import Config, flag, is_positional, leaves
from bough.config.flags import plain_type

ROOT = Path(__file__).parents[2]
Case = Callable[[Path, Path, Random], list[str]]
# Commands that are only tried with files or names they cannot use: they would train, serve or install otherwise.
NEVER = ("view", "env setup", "push", "grpo")


def data(base: Path, folder: Path, rng: Random) -> list[str]:
    verb = rng.choice(["stats", "validate", "show", "convert", "convert"])
    words = ["data", verb, str(damaged_file(folder, _rows(base, rng), rng))]
    if verb == "convert":
        words += ["--to", rng.choice(["bough", "trl", "knowlyr-sft", "knowlyr-dpo", "knowlyr-grpo", "x"])]
        words += ["-o", str(folder / rng.choice(["out.jsonl", "out.jsonl.zst", "out", "no/such/out.jsonl"]))]
        words += rng.choice([[], ["--on-error", "skip"]])
    if verb == "show":
        words += ["--index", rng.choice(["0", "1", "999", "-1", str(10**30)]), "--count", "3"]
    return words + rng.choice([[], [], ["--format", rng.choice(["bough", "trl", "openai", "sharegpt", "x"])]])


def curate(base: Path, folder: Path, rng: Random) -> list[str]:
    verb = rng.choice(["demos", "pairs", "pairs", "groups"])
    source = damaged_file(folder, (base / "played/trajectories.jsonl").read_bytes(), rng)
    words = [verb, str(source), "-o", str(folder / "out.jsonl")]
    if verb == "pairs":
        words += ["--kinds", *rng.sample(["episode", "parting", "failure_mode", "right_step"], 2)]
        words += rng.choice([[], ["--environment", rng.choice(["household", "x", "a.py:X", "os:path"])]])
        if rng.random() < 0.3:
            (folder / "places.json").write_bytes(changed_json(b'{"apple": ["fridge"]}', rng))
            words += ["--rules", "household", "--rule-options", f"locations={folder / 'places.json'}"]
    else:
        words += rng.choice([[], ["--rewards", rng.choice(["outcome=1", "outcome=nan", "x=1", "os:getcwd=1", "="])]])
    return words


def doctor(base: Path, folder: Path, rng: Random) -> list[str]:
    words = ["doctor", str(damaged_file(folder, _rows(base, rng), rng)), "--model", "tiny"]
    if rng.random() < 0.4:
        (folder / "a.jinja").write_text(rng.choice(TEMPLATES), encoding="latin-1")
        words += ["--chat-template", str(folder / "a.jinja")]
    return words


def recipe(base: Path, folder: Path, rng: Random) -> list[str]:  # noqa: ARG001
    shipped = sorted((ROOT / "src/bough/recipes").glob("*.yaml"))
    text = rng.choice(shipped).read_text()
    way = rng.random()
    if way < 0.3:
        text = rng.choice(YAML)
    elif way < 0.6:
        text = flip(text.encode(), rng).decode("utf-8", "replace")
    else:
        text = yaml.safe_dump(json.loads(json.dumps(change(yaml.safe_load(text), rng))), allow_unicode=True)
    (folder / "mine.yaml").write_text(text, encoding="utf-8", errors="backslashreplace")
    words = ["run", str(folder / "mine.yaml"), "--dry-run", "-o", str(folder / "run")]
    return words + rng.choice([[], ["--set", rng.choice(WORDS)], ["--set", f"model={rng.choice(WORDS)}"]])


def compare(base: Path, folder: Path, rng: Random) -> list[str]:
    for name in ("a.json", "b.json"):
        content = changed_json((base / "evaluated/results.json").read_bytes(), rng)
        (folder / name).write_bytes(flip(content, rng) if rng.random() < 0.2 else content)
    second = base / "evaluated" if rng.random() < 0.5 else folder / "b.json"
    return ["compare", str(folder / "a.json"), str(second), "--against", rng.choice(["first", "all"])]


def held_out(base: Path, folder: Path, rng: Random) -> list[str]:  # noqa: ARG001
    source = (ROOT / "examples/household-pairs-held-out.jsonl").read_bytes().splitlines(keepends=True)[:2]
    return ["eval", "--model", "tiny", "--eval-file", str(damaged_file(folder, b"".join(source), rng))]


def run_folder(base: Path, folder: Path, rng: Random) -> list[str]:
    """A finished run, one file of which was damaged, under whatever reads runs."""
    run = folder / "run"
    shutil.copytree(base / "run", run)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.suffix in (".json", ".yaml", ".jsonl"))
    file = rng.choice(files)
    content = file.read_bytes()
    if rng.random() < 0.5 and file.suffix == ".json":
        content = changed_json(content, rng)
    elif rng.random() < 0.5 and file.suffix == ".jsonl" and content:
        content = changed_lines(content, rng)
    elif rng.random() < 0.5 and file.suffix == ".yaml":
        content = rng.choice(YAML).encode("utf-8", "backslashreplace")
    else:
        content = flip(content, rng)
    file.write_bytes(content)
    if rng.random() < 0.1:
        file.unlink()
        odd_path(file.parent, rng)
    return rng.choice(
        [
            ["card", str(run), "--overwrite"],
            ["runs", "show", str(run)],
            ["runs", "list", str(folder)],
            ["view", str(run), "--export", str(folder / "page.html"), "--max-records", "5"],
            ["push", str(run), "--repo", "org/name", "--dry-run", "--base-model", "org/base"],
        ]
    )


def merge(base: Path, folder: Path, rng: Random) -> list[str]:
    shutil.copytree(base / "run/03-sft/final", folder / "final")
    file = rng.choice(sorted(path for path in (folder / "final").iterdir() if path.is_file()))
    content = file.read_bytes()
    is_json = file.suffix == ".json" and rng.random() < 0.6
    file.write_bytes(changed_json(content, rng) if is_json else flip(content, rng))
    return ["merge", str(folder / "final"), "-o", str(folder / "merged")]


def tasks(base: Path, folder: Path, rng: Random) -> list[str]:
    """A world's tasks out of a file, played at random."""
    source = folder / "tasks.jsonl"
    source.write_bytes(changed_lines((base / "tasks.jsonl").read_bytes(), rng))
    words = ["--task-file", str(source)]
    if rng.random() < 0.5:
        return ["collect", "--environment", "household", "--model", "random", "--tasks", "2", "--max-turns", "3",
                "--output", str(folder / "out"), *words]  # fmt: skip
    (folder / "actions.txt").write_text("\n".join(rng.choice(WORDS) for _ in range(4)))
    return ["play", "household", "--actions", str(folder / "actions.txt"), *words]


def flags(base: Path, folder: Path, rng: Random) -> list[str]:  # noqa: ARG001
    """Any command with any flags; what it reads is not there."""
    name = rng.choice([name for name in table.TABLE if name not in NEVER])
    config: type[Config] = table.command(name).config
    words = name.split()
    for key, leaf in leaves(config).items():
        if is_positional(leaf.info) and rng.random() < 0.8:
            words.append(str(folder / "nothing") if rng.random() < 0.7 else rng.choice(WORDS) or "x")
        elif not is_positional(leaf.info) and rng.random() < 0.15:
            words.append(flag(key))
            if plain_type(leaf.info.annotation) is not bool:
                words.append(rng.choice(WORDS))
    if rng.random() < 0.2:
        (folder / "settings.yaml").write_text(rng.choice(YAML), encoding="utf-8", errors="backslashreplace")
        words += ["--config", str(folder / "settings.yaml")]
    outputs = [word for word in ("--output", "--output-dir") if flag(word[2:]) in map(flag, leaves(config))]
    return [*words, *(part for word in outputs for part in (word, str(folder / "out")))]


def _rows(base: Path, rng: Random) -> bytes:
    examples = [ROOT / "examples/household.jsonl", ROOT / "examples/household-pairs.jsonl"]
    samples = sorted((ROOT / "tests/samples").glob("*.jsonl"))
    return rng.choice([*examples, *samples, base / "played/trajectories.jsonl"]).read_bytes()


# Of a thousand cases; those that load torch are slow.
SHARES: list[tuple[Case, int]] = [
    (data, 340), (curate, 150), (doctor, 50), (recipe, 100), (compare, 70), (held_out, 20), (run_folder, 110),
    (merge, 20), (tasks, 40), (flags, 100),
]  # fmt: skip


def case(number: int, seed: int, base: Path, folder: Path) -> tuple[str, list[str]]:
    """The kind and the words of a case; its files are written into `folder`."""
    rng = Random(f"{seed} {number}")
    [kind] = rng.choices([kind for kind, _ in SHARES], [share for _, share in SHARES])
    return kind.__name__, kind(base, folder, rng)
