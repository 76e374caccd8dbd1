"""A lineage of three generations written by hand: an elite, a mutation, a child like its parent."""

from typing import Any


def line(generation: int, name: str, fitness: float | None, **more: Any) -> dict[str, Any]:
    """A line of `lineage.jsonl`."""
    return {
        "generation": generation, "name": name, "born": 0, "parent": None, "mutation": None,
        "settings": {"learning_rate": 1e-3, "loss_type": "sigmoid"}, "rank": 4, "step": 2 * generation + 2,
        "loss": 0.5, "fitness": fitness, "interval": None if fitness is None else [fitness / 2, (1 + fitness) / 2],
        "tasks": 8, "lost": 0, "place": 1,
    } | more  # fmt: skip


CHILD = {
    "born": 1,
    "parent": "g0-1",
    "mutation": {"kind": "hyper_parameter", "setting": "learning_rate", "before": 1e-3, "after": 1e-4},
    "settings": {"learning_rate": 1e-4, "loss_type": "sigmoid"},
}
TWIN = {
    "born": 2,
    "parent": "g1-1",
    "mutation": {"kind": "no_mutation"},
    "settings": {"learning_rate": 1e-4, "loss_type": "sigmoid"},
}
FAMILY = [
    line(0, "g0-1", 0.5, lives=False, children=1),
    line(0, "g0-0", 0.25, place=2, lives=True, children=0, settings={"learning_rate": 1e-2, "loss_type": "ipo"}),
    line(1, "g1-1", 0.75, lives=True, children=1, **CHILD),
    line(1, "g0-0", 0.625, place=2, lives=False, children=0, settings={"learning_rate": 1e-2, "loss_type": "ipo"}),
    line(2, "g2-1", 0.875, **TWIN),
    line(2, "g1-1", None, place=2, **CHILD),
]
REPORT: dict[str, Any] = {
    "step": 3,
    "winner": {"name": "g2-1"},
    "metric": "accuracy",
    "selected": {"fitness": 0.875, "interval": [0.5, 1.0], "tasks": 8, "lost": 0},
    "untouched": {"fitness": 0.625, "interval": [0.25, 0.75], "tasks": 8, "lost": 0},
    "shrinkage": 0.25,
    "updates": 12,
    "tokens_computed": 3456,
}
