"""Where the arms of `evolve_study.py` are compared, and how large they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class World:
    """Where the arms are compared, and what they do there. `play` goes to every command that plays episodes."""

    environment: str
    method: str
    play: Mapping[str, Any]
    set: Mapping[str, Any]
    mutate: Mapping[str, Any]
    demonstrations: int
    start: Mapping[str, Any] | None = None
    concurrency: int = 32
    members: int = 8
    generations: int = 5
    steps: int = 4
    eval_tasks: int = 64
    test_tasks: int = 300
    model: str = "smollm2"


WORLDS = {
    "household": World(
        environment="household",
        method="sft",
        play={
            "options": {"types": ["pick_and_place_simple"]},
            **{"max_turns": 10, "max_errors": 2, "max_new_tokens": 48},
        },
        demonstrations=1000,
        set={"learning_rate": 5e-4, "batch_size": 4, "token_budget": 6144},
        mutate={"learning_rate": "2e-5..5e-3", "weight_decay": "0..0.1"},
        concurrency=128,
        members=4,
        generations=4,
        steps=20,
        eval_tasks=32,
        test_tasks=150,
    ),
    "household-grpo": World(
        environment="household",
        method="grpo",
        play={"max_turns": 40, "max_new_tokens": 64},
        demonstrations=1000,
        start={"max_steps": 150, "batch_size": 16, "learning_rate": 1e-3},
        set={"learning_rate": 5e-5, "batch_size": 8, "group_size": 8},
        mutate={"learning_rate": "5e-6..5e-4", "temperature": "0.7..1.3", "clip_high": "0.2..0.4"},
        concurrency=128,
    ),
    "web": World(
        environment="web",
        method="sft",
        play={
            "options": {"pages": ["click-button", "login-user"], "actions": ["click", "fill"]},
            **{"max_turns": 4, "max_errors": 1, "max_new_tokens": 32},
        },
        demonstrations=80,
        set={"learning_rate": 5e-4, "batch_size": 4},
        mutate={"learning_rate": "2e-5..5e-3", "weight_decay": "0..0.1"},
        concurrency=16,
        members=4,
        generations=2,
        steps=5,
        eval_tasks=12,
        test_tasks=60,
    ),
}
