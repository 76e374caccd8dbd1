"""A small evolution: short preferences, adapters on one projection, two updates a generation."""

from pathlib import Path
from typing import Any

from bough.data.writer import Writer
from bough.experiments.evolve_settings import EvolveConfig
from bough.types import Message, Pair, Task, Turn

WORDS = ("red", "blue", "green", "black", "white", "brown", "pink", "grey")
SETTINGS: dict[str, Any] = {
    "model": "tiny",
    "population_size": 4,
    "generations": 3,
    "steps": 2,
    "seed": 3,
    "set": {"learning_rate": 1e-3, "batch_size": 2, "lora_r": 2, "lora_alpha": 4, "lora_target_modules": ["q_proj"]},
    "mutate": {"learning_rate": "1e-4..1e-2", "beta": "0.05..0.5"},
    "test_size": 0.25,
}


def say(text: str) -> list[Turn]:
    return [Turn(reply=Message(role="assistant", content=text))]


def pairs(count: int = 16) -> list[Pair]:
    """Which of two words is asked for."""
    found = []
    for number in range(count):
        one, other = WORDS[number % len(WORDS)], WORDS[(number + 3) % len(WORDS)]
        start = [Message(role="user", content=f"{number}: write {one}")]
        found.append(Pair(task=Task(id=str(number)), start=start, chosen=say(one), rejected=say(other)))
    return found


def pairs_file(folder: Path) -> Path:
    path = folder / "pairs.jsonl"
    with Writer(path) as writer:
        for pair in pairs():
            writer.write(pair)
    return path


def config(folder: Path, **changes: Any) -> EvolveConfig:
    """The settings of the small evolution in `folder`, where its records are."""
    path = folder / "pairs.jsonl"
    folder.mkdir(exist_ok=True)
    if not path.exists():
        pairs_file(folder)
    return EvolveConfig(**{"train_file": path, "output_dir": folder / "run", **SETTINGS, **changes})
