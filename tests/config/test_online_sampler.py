"""Which engine may sample for which training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.methods.grpo import GRPOConfig

PLAYED = {"environment": "household", "max_steps": 1}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"base_url": "http://127.0.0.1:8000/v1"}, "base_url needs engine vllm"),
        ({"engine_options": {"enforce_eager": True}}, "engine_options needs engine vllm"),
        (
            {"engine": "vllm", "base_url": "http://127.0.0.1:8000/v1", "engine_options": {"seed": 1}},
            "engine_options are for vLLM in this process",
        ),
        (
            {"engine": "vllm", "base_url": "http://127.0.0.1:8000/v1", "use_lora": False},
            "engine vllm with base_url needs use_lora",
        ),
        ({"engine": "vllm", "qlora": True}, "engine vllm does not go with qlora"),
        ({"engine": "vllm", "temperature": 0.7, "top_p": 0.9}, "only at temperature 1"),
        ({"engine": "openai"}, "choose one of 'local', 'vllm'"),
        ({"temperature": 0}, "temperature"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(settings: dict[str, Any], problem: str):
    with pytest.raises(InputError, match=problem):
        GRPOConfig(**PLAYED, **settings)


def test_an_engine_without_an_environment_would_have_nothing_to_do():
    with pytest.raises(InputError, match="engine vllm needs environment"):
        GRPOConfig(train_file=Path("groups.jsonl"), engine="vllm")


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "vllm", "use_lora": False, "temperature": 0.7},
        {"engine": "vllm", "top_k": 5},
        {"engine": "vllm", "base_url": "http://127.0.0.1:8000/v1", "max_staleness": 1},
        {"engine": "local", "temperature": 0.7, "top_p": 0.9},
    ],
)
def test_what_an_engine_can_do(settings: dict[str, Any]):
    assert GRPOConfig(**PLAYED, **settings).sampler.engine == settings["engine"]


def test_options_of_vllm_are_read_from_the_command_line():
    config = GRPOConfig.load(None, {**PLAYED, "engine": "vllm", "engine_options": ["max-model-len=99", "a=true"]})
    assert config.sampler.options == {"max_model_len": 99, "a": True}
