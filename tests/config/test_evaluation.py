from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.evaluation.contest import EvalConfig


def playing(**more: Any) -> EvalConfig:
    return EvalConfig(**{"environment": "household", "output": Path("out"), **more})


def test_one_name_is_a_list_of_one():
    assert playing(model="tiny").agent.model == ["tiny"]
    assert playing(model=["expert", "random"]).agent.model == ["expert", "random"]


def test_the_settings_read_back_to_the_same(tmp_path: Path):
    for config in (playing(model=["a/b", "expert"]), EvalConfig(eval_file=Path("a.jsonl"), max_length=64)):
        (tmp_path / "eval.yaml").write_text(config.to_yaml())
        assert EvalConfig.load(tmp_path / "eval.yaml") == config


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "neither is given"),
        ({"environment": "household", "eval_file": "a.jsonl"}, "both are given"),
        ({"environment": "household"}, "--output is required with --environment"),
        (
            {"environment": "household", "output": "o", "token_budget": 999, "max_length": 64},
            "--token-budget, --max-length only has a meaning with --eval-file, not with --environment",
        ),
        ({"eval_file": "a.jsonl", "attempts": 2}, "--attempts only has a meaning with --environment"),
        ({"eval_file": "a.jsonl", "model": ["a", "b"]}, "--eval-file takes one model, not 2"),
        ({"eval_file": "a.jsonl", "output": "/"}, "--output / is a folder"),
        ({"environment": "household", "output": "o", "model": ["a", "a"]}, "a model is given twice"),
        ({"environment": "household", "output": "o", "model": ["a", "b"], "adapter": "c"}, "--adapter needs a single"),
        ({"environment": "household", "output": "o", "attempts": 4}, "--attempts 4 at temperature 0"),
    ],
)
def test_what_does_not_go_together_is_said(values: dict[str, Any], complaint: str):
    with pytest.raises(InputError) as caught:
        EvalConfig(**values)
    assert complaint in str(caught.value)


def test_baselines_may_try_often_without_a_temperature_and_episodes_are_tasks():
    assert playing(model=["expert", "random"], attempts=4).sampling.temperature == 0.0
    assert playing(episodes=7).tasks == 7


def test_a_contestant_plays_under_the_shared_settings():
    config = playing(model=["a/b", "c/d"], temperature=0.7, seed=3, max_turns=9, attempts=2, options={"x": 1})
    found = config.contestant("c/d", Path("out/models/x"))
    assert (found.agent.model, found.output) == ("c/d", Path("out/models/x"))
    assert (found.sampling.temperature, found.seed) == (0.7, 3)
    assert (found.limits.max_turns, found.attempts) == (9, 2)
    assert (found.environment.options, found.environment.split) == ({"x": 1}, "unseen")
    assert found.rescore == 0


def test_a_server_is_told_a_models_name_only_if_the_user_was_asked_for_one():
    assert "model" not in playing(engine="openai").contestant("smollm2", Path("o")).agent.model_fields_set
    assert "model" in playing(engine="openai", model="gpt").contestant("gpt", Path("o")).agent.model_fields_set
