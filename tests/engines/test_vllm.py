"""What is told to vLLM. vLLM itself is tested in `vllm_environment`, by `make test-vllm`."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from bough.config.groups import SamplingConfig
from bough.engines.base import ContextFullError
from bough.engines.vllm import VLLMEngine, adapter_rank, engine_arguments, sampling_arguments
from bough.errors import InputError


def adapter(folder: Path, settings: object) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def test_an_answer_ends_where_the_context_does():
    sampling = SamplingConfig(max_new_tokens=7)
    assert sampling_arguments(sampling, 1, [], room=3)["max_tokens"] == 3
    for room in (0, -5):
        with pytest.raises(ContextFullError):
            sampling_arguments(sampling, 1, [], room=room)


def test_the_rank_of_an_adapter_is_its_largest(tmp_path):
    assert adapter_rank(adapter(tmp_path, {"r": 8})) == 8
    assert adapter_rank(adapter(tmp_path, {"r": 8, "rank_pattern": {"q_proj": 24}})) == 24
    for settings in ({}, {"r": None}, [], {"r": "x"}):
        with pytest.raises(InputError, match="contains no LoRA adapter"):
            adapter_rank(adapter(tmp_path, settings))
    with pytest.raises(InputError, match="contains no LoRA adapter"):
        adapter_rank(tmp_path / "none")


def test_log_probabilities_and_sampling_are_the_models_own_whatever_the_options():
    arguments = engine_arguments(
        "tiny", 16, "raw_logprobs", {"max_model_len": 99, "enable_prefix_caching": False, "max_loras": 5}
    )
    assert arguments["logprobs_mode"] == "raw_logprobs"
    assert arguments["generation_config"] == "vllm"
    assert arguments["trust_remote_code"] is False
    assert (arguments["enable_lora"], arguments["max_lora_rank"], arguments["max_loras"]) == (True, 16, 5)
    assert (arguments["max_model_len"], arguments["enable_prefix_caching"]) == (99, False)
    assert "enable_lora" not in engine_arguments("tiny", 0, "raw_logprobs", {})
    for ours in ("model", "logprobs_mode", "trust_remote_code"):
        with pytest.raises(InputError, match=f"vLLM's {ours} is set by Bough itself"):
            engine_arguments("tiny", 0, "raw_logprobs", {ours: True})


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_way_to_get_it_is_said():
    with pytest.raises(InputError, match=r"pip install 'bough\[vllm\]'"):
        asyncio.run(VLLMEngine.load("tiny"))
