"""The shipped recipe of corrections by rounds, played to its end with a tiny model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bough import recipes
from bough.data.reader import read
from bough.experiments.recipe import load_recipe
from bough.experiments.record import StageRecord
from bough.experiments.run import Run
from bough.types import Trajectory

SMALL = {
    "model": "tiny", "defaults.limits": {"max_turns": 3}, "defaults.sampling": {"max_new_tokens": 4},
    "demonstrations.tasks": 2, "demonstrations.max_turns": 30, "sft.max_steps": 1, "sft.batch_size": 1,
    "after-sft.tasks": 1, "own-play.tasks": 2, "corrected.max_steps": 1, "corrected.batch_size": 1,
    "after-corrections.tasks": 1,
}  # fmt: skip


def record(folder: Path, name: str) -> StageRecord:
    found = StageRecord.read(folder / name)
    assert found is not None and found.finished
    return found


def rules(file: Path) -> Counter[str]:
    return Counter(str(one.info["rule"]) for one in read(file) if isinstance(one, Trajectory))


def test_each_round_plays_with_the_newest_weights_and_trains_on_all_data_so_far(tmp_path: Path):
    recipe = load_recipe(Path(recipes.__file__).parent / "household-corrections.yaml", SMALL)
    lines: list[str] = []
    Run(recipe, tmp_path).play(lines.append)
    stages = [line for line in lines if line[:2].isdecimal()]
    assert stages == [
        "01-demonstrations", "02-demos", "03-sft", "04-after-sft",
        "05-own-play", "06-corrections", "07-corrected", "08-after-corrections",
        "09-own-play-round-2", "10-corrections-round-2", "11-corrected-round-2", "12-after-corrections-round-2",
    ]  # fmt: skip
    assert record(tmp_path, "05-own-play").inputs["model"] == record(tmp_path, "03-sft").outputs["model"]
    assert record(tmp_path, "09-own-play-round-2").inputs["model"] == record(tmp_path, "07-corrected").outputs["model"]
    for corrections, trained in (
        ("06-corrections", "07-corrected"),
        ("10-corrections-round-2", "11-corrected-round-2"),
    ):
        made = record(tmp_path, corrections).outputs["demonstrations"]
        assert record(tmp_path, trained).inputs["train_file"] == made
    first, second = (
        rules(tmp_path / name / "corrections.jsonl") for name in ("06-corrections", "10-corrections-round-2")
    )
    assert first["correction"] == 2 == first["demonstration"], "half of the data are demonstrations"
    assert second["correction"] >= 2 and second.total() == 4, "half of it is of the rounds before"
