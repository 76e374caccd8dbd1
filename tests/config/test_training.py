import pytest

from bough.config.training import DPOConfig, GRPOConfig
from bough.errors import InputError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_type": "cdpo"}, "give label_smoothing above 0"),
        ({"loss_type": "hinge", "label_smoothing": 0.1}, "not defined for the hinge loss"),
        ({"loss_type": "ipo", "label_smoothing": 0.1}, "not defined for the ipo loss"),
        ({"gamma": 0.5}, "the sigmoid loss has none"),
    ],
)
def test_settings_of_a_preference_loss_that_do_not_go_together(settings: dict, said: str):
    with pytest.raises(InputError) as error:
        DPOConfig(train_file="pairs.jsonl", output_dir="out", **settings)
    assert said in "".join(error.value.problems)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train_file": "g.jsonl", "averaging": "constant_length"}, "needs constant_length"),
        ({"train_file": "g.jsonl", "dual_clip": 1.2, "clip_high": 0.28}, "above 1.28"),
        ({"environment": "household"}, "max_steps is required"),
        ({"environment": "e", "max_steps": 1, "task_file": "t", "eval_every": 1}, "needs eval_task_file"),
        ({"environment": "e", "max_steps": 1, "task_file": "t", "eval_task_file": "t"}, "eval_task_file is task_file"),
        ({"train_file": "g.jsonl", "environment": "household"}, "give one of them"),
        ({}, "give one of them"),
    ],
)
def test_settings_of_grpo_that_do_not_go_together(settings: dict, said: str):
    with pytest.raises(InputError) as error:
        GRPOConfig(output_dir="out", **settings)
    assert said in "".join(error.value.problems)


def test_those_that_do_are_taken():
    DPOConfig(train_file="pairs.jsonl", output_dir="out", loss_type="cdpo", label_smoothing=0.1)
    DPOConfig(train_file="pairs.jsonl", output_dir="out", loss_type="simpo", gamma=0.5)
    GRPOConfig(train_file="g.jsonl", output_dir="out", averaging="constant_length", constant_length=64, dual_clip=10)
