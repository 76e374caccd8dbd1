"""Two evolutions that must have gone the same way: same decisions to the letter, same numbers up to rounding."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import bough

ADAPTER = "adapter_model.safetensors"
NUMBERS = ("loss", "fitness", "interval")


def check_same(found: Any, other: Any) -> None:
    """The lineage, the scores, every adapter of the last generation and the winner's."""
    assert len(found.lineage) == len(other.lineage)
    for mine, theirs in zip(found.lineage, other.lineage, strict=True):
        assert {k: v for k, v in mine.items() if k not in NUMBERS} == {
            k: v for k, v in theirs.items() if k not in NUMBERS
        }
        for name in NUMBERS:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-5), name
    assert found.report["winner"]["name"] == other.report["winner"]["name"]
    assert found.report["untouched"]["fitness"] == pytest.approx(
        other.report["untouched"]["fitness"], rel=1e-5, abs=1e-5
    )
    assert found.report["updates"] == other.report["updates"]
    for mine, theirs in zip(_adapters(found), _adapters(other), strict=True):
        assert mine.parent.name == theirs.parent.name
        weights, others = load_file(mine), load_file(theirs)
        assert weights.keys() == others.keys()
        assert max(float((weights[name] - others[name]).abs().max()) for name in weights) < 1e-5


def check_same_episodes(folder: Path, other: Path) -> None:
    """What members said in their fitness tasks, word for word, and that no episode was a retry."""
    collections = sorted(path.relative_to(other) for path in other.glob("rollouts/*/*"))
    assert collections and sorted(path.relative_to(folder) for path in folder.glob("rollouts/*/*")) == collections
    for name in collections:
        mine, theirs = ({one.id: one for one in _episodes(run / name)} for run in (folder, other))
        assert mine.keys() == theirs.keys()
        for id, record in mine.items():
            assert [turn.reply for turn in record.turns] == [turn.reply for turn in theirs[id].turns]
            assert "retries" not in record.info


def _episodes(folder: Path) -> list[bough.Trajectory]:
    records = bough.read(folder / "trajectories.jsonl")
    return [record for record in records if isinstance(record, bough.Trajectory)]


def _adapters(evolved: Any) -> list[Path]:
    folder = Path(evolved.folder) if hasattr(evolved, "folder") else Path(evolved.path).parent
    [last] = sorted((folder / "checkpoints").glob("generation-*-trained"))[-1:]
    return [*sorted(last.glob(f"*/{ADAPTER}")), folder / "final" / ADAPTER]
