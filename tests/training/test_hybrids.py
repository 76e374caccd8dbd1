"""Models with each kind of layer that carries state train as trees, and to the same result as plain rows."""

from pathlib import Path

import pytest
import torch
import transformers

from bough.cli import main
from bough.config.run_folder import MetricsFile
from bough.models.resolve import load_tokenizer
from tests.policy.families import HYBRIDS

SAMPLES = Path(__file__).parents[1] / "samples"
SETTINGS = ["--max-steps", "2", "--batch-size", "4", "--learning-rate", "1e-2", "--lora-r", "4"]


@pytest.mark.parametrize(
    ("family", "method", "file"),
    [
        ("lfm2", "sft", "knowlyr_sft_steps.jsonl"),
        ("qwen3_5_text", "dpo", "roundwise_dpo.jsonl"),
        ("granitemoehybrid", "grpo", "knowlyr_grpo.jsonl"),
    ],
)
def test_a_run_on_trees_has_the_losses_of_plain_rows(tmp_path: Path, family: str, method: str, file: str):
    name, settings = HYBRIDS[family]
    tokenizer = load_tokenizer("tiny")
    config = getattr(transformers, name)(**settings | {"vocab_size": len(tokenizer), "max_position_embeddings": 4096})
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    found = {}
    for rows, more in (("tree", []), ("plain", ["--no-share"])):
        run = ["--model", str(tmp_path / "model"), "--output-dir", str(tmp_path / rows)]
        assert main([method, "--train-file", str(SAMPLES / file), *run, *SETTINGS, *more]) == 0
        found[rows] = MetricsFile.read(tmp_path / rows / "metrics.jsonl")
    assert found["tree"][0]["shared"] > 1.1 and found["plain"][0]["shared"] == 1
    for tree, plain in zip(found["tree"], found["plain"], strict=True):
        assert tree["loss"] == pytest.approx(plain["loss"], rel=1e-4)
        assert tree["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-3)
