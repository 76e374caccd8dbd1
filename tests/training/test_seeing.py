"""Models that also see train on text: SFT of a small random one, with an adapter and in full."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open

from bough.cli import main
from bough.models.miniature import miniature
from bough.models.resolve import load_tokenizer
from bough.policy.policy import Policy

EPISODES = Path(__file__).parents[1] / "samples/trl_messages.jsonl"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("seeing")
    tokenizer = load_tokenizer("tiny")
    sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}
    with torch.device("meta"):
        config = transformers.Qwen2_5_VLConfig(text_config={"rope_parameters": sections})
        outline = transformers.AutoModelForImageTextToText.from_config(config)
    model = miniature(outline)
    model.resize_token_embeddings(len(tokenizer))
    model.config.text_config.max_position_embeddings = 4096
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sft(model: Path, run: Path, *more: str) -> list[dict]:
    file = str(EPISODES)
    common = ["--max-steps", "1", "--batch-size", "1"]
    assert main(["sft", "--train-file", file, "--model", str(model), "--output-dir", str(run), *common, *more]) == 0
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_an_adapter_of_its_language_model_is_trained_on_text(seeing, tmp_path):
    (line,) = sft(seeing, tmp_path / "run")
    assert line["grad_norm"] > 0
    with safe_open(tmp_path / "run/final/adapter_model.safetensors", "pt") as file:
        assert all(".language_model." in name for name in file.keys())  # noqa: SIM118
    again = Policy.load(str(tmp_path / "run/final"), device="cpu")
    assert again.has_adapter and again.obstacle is None


def test_in_full_its_vision_tower_stays_as_it_was(seeing, tmp_path):
    sft(seeing, tmp_path / "run", "--no-use-lora")
    before, after = (load(folder) for folder in (seeing, tmp_path / "run/final"))
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed and not any("visual" in name for name in changed)


def load(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
