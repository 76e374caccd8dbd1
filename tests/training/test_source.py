from pathlib import Path
from typing import Any

from bough.config.training import SFTConfig
from bough.training.objective import Example
from bough.training.source import FileSource
from bough.types import Call

EXAMPLES = [
    Example([Call(prompt_ids=[1], completion_ids=[number])], cluster=str(number), difficulty=float(number))
    for number in range(4)
]


def source(**more: Any) -> FileSource:
    config = SFTConfig(train_file=Path("x"), output_dir=Path("y"), batch_size=2, num_epochs=2, **more)
    return FileSource(EXAMPLES, config)


def numbers(found: FileSource, step: int) -> set[int]:
    return {example.calls[0].completion_ids[0] for example in found.batch(step).examples}


def test_every_example_comes_once_an_epoch():
    found = source()
    assert len(found) == 4
    seen = [(numbers(found, step), found.ends_epoch(step)) for step in range(4)]
    assert seen[0][0] | seen[1][0] == {0, 1, 2, 3} == seen[2][0] | seen[3][0]
    assert [ends for _, ends in seen] == [False, True, False, True]
    assert [found.batch(step).epoch for step in range(4)] == [0, 0, 1, 1]


def test_a_step_is_the_same_whoever_asks_and_when():
    late, whole = source(), source()
    assert [numbers(whole, step) for step in range(4)][3] == numbers(late, 3)


def test_an_adaptive_curriculum_goes_on_from_what_a_checkpoint_kept():
    adaptive = {"curriculum": True, "curriculum_start_ratio": 0.5, "curriculum_warmup_epochs": 1}
    found = source(curriculum_success=0.8, **adaptive)
    assert numbers(found, 0) == {0, 1}, "the easy half first"
    found.tell(0.9)
    again = source(curriculum_success=0.8, **adaptive)
    again.restore(found.levels)
    assert found.levels == again.levels == [0, 1] and numbers(found, 1) == numbers(again, 1)


def test_without_a_threshold_nothing_is_told():
    found = source(curriculum=True)
    before = found.levels
    found.tell(0.9)
    assert found.levels == before
