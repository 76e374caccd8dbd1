from pathlib import Path

import pytest

from bough.report import card
from bough.report.lineage import Lineage, base_model, lineage
from tests.report import folders


@pytest.fixture
def found(tmp_path: Path) -> Lineage:
    expert = folders.collection(tmp_path / "expert")
    played = folders.collection(tmp_path / "played", model=str(tmp_path / "sft/final"), environment="my/world.py:World")
    file = folders.pairs(tmp_path / "made/pairs.jsonl", [expert, played], {"loop": 20, "weird<b>": 10})
    folders.stage(tmp_path / "sft", "sft", train_file="/somewhere/else/demos.jsonl", kept=5)
    model = str(tmp_path / "sft/final")
    return_to = tmp_path / "dpo"
    folders.stage(return_to, "dpo", model=model, train_file=file, beta=0.25, nll_alpha=0.5, kept=28, token_budget=4096)
    return lineage(return_to)


def test_the_pipeline_is_drawn_from_the_base_to_this_model(found: Lineage):
    assert card.pipeline(base_model("smollm2"), found) == (
        "HuggingFaceTB/SmolLM2-135M-Instruct\n"
        "│\n"
        "├── 1. sft: Supervised fine-tuning\n"
        "│      data: demos.jsonl, 5 rows\n"
        "│      12 steps, 3,456 tokens trained\n"
        "│      loss 2.5 → 1.25\n"
        "│\n"
        "└── 2. dpo: Direct preference optimisation (this model)\n"
        "       data: pairs.jsonl, 28 rows\n"
        "       12 steps, 3,456 tokens trained\n"
        "       loss 2.5 → 1.25"
    )


def test_a_world_that_was_played_in_and_a_start_adapter_are_named(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    folders.stage(tmp_path / "grpo", "grpo", model=str(tmp_path / "mine"), environment="a/b.py:World", max_steps=3)
    drawing = card.pipeline(base_model("org/base"), lineage(tmp_path / "grpo"))
    assert "org/base\n│   start adapter: mine\n" in drawing and "environment: b.py:World" in drawing


def test_the_data_is_accounted_for_with_its_reasons_and_episodes(found: Lineage):
    text = "\n\n".join(card.data(found))
    for row in (
        "| sft | rows | 7 | 5 | 2 `too_long` |",
        "| dpo | mistakes | 50 | 30 | 20 `nobody_knows_better` |",
        "| dpo | rows | 30 | 28 | 2 `too_long` |",
        "| `loop` | 20 | repeats an earlier action with the same result, without progress |",
        "| `weird<b>` | 10 |  |",
        "| expert | expert | `household` | 40 | 92.5% | 37 `terminated`, 3 `max_turns` |",
        "| played | sft | `world.py:World` | 40 | 92.5% |",
    ):
        assert row in text


def test_settings_are_those_that_matter_and_those_that_were_changed(found: Lineage):
    text = card.settings(found.stages)
    assert text.startswith("| setting | sft | dpo |\n| --- | --- | --- |\n| steps | 12 | 12 |\n")
    assert "| `learning_rate` | 0.0002 | 5e-05 |" in text
    assert "| `beta` | – | 0.25 |" in text
    assert "| `nll_alpha` | – | 0.5 |" in text
    assert "| `lora_target_modules` | all-linear | all-linear |" in text
    for hidden in ("label_smoothing", "token_budget", "output_dir", "train_file", "model"):
        assert f"`{hidden}`" not in text


def test_options_that_are_paths_are_told_by_their_last_name(tmp_path: Path):
    options = {"games": "/home/ann/games", "types": ["a"]}
    folders.stage(tmp_path / "grpo", "grpo", environment="household", max_steps=3, options=options, watch=False)
    text = card.settings(lineage(tmp_path / "grpo").stages)
    assert '| `options` | `{"games": "games", "types": ["a"]}` |' in text and "| `watch` | no |" in text


def test_the_objective_is_said_stage_by_stage(found: Lineage):
    parts = list(card.objective("Finds <things>.", found))
    assert parts[0] == "Finds \\<things\\>."
    assert parts[1].startswith("**Supervised fine-tuning** (sft). The model learns to reply as")
    assert parts[2].startswith("**Direct preference optimisation** (dpo). Given the same history")
