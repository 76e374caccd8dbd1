from pathlib import Path
from typing import Any

import yaml

from bough.report.card import CardConfig, find_subject, front_matter, measured
from bough.report.lineage import base_model
from tests.report import folders


def read(
    runs: Path, *evaluations: Path, title: str = "Title", base: str = "smollm2", **settings: Any
) -> dict[str, Any]:
    subject = find_subject(runs / "sft", list(evaluations))
    model = base_model(base)
    text = front_matter(subject, model, measured(subject, model), title, CardConfig(run=runs / "sft", **settings))
    assert text.startswith("---\n") and text.endswith("\n---")
    found: dict[str, Any] = yaml.safe_load(text.strip("-"))
    return found


def test_an_adapter_is_described_in_the_hubs_words(tmp_path: Path):
    folders.stage(tmp_path / "sft", "sft", train_file=Path("hf://org/data/train"))
    found = read(tmp_path, license="mit", language=["en"], datasets=["org/more", "org/data"])
    assert found == {
        "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "base_model_relation": "adapter",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "license": "mit",
        "language": ["en"],
        "datasets": ["org/data", "org/more"],
        "tags": ["bough", "agent", "lora", "sft"],
    }


def test_what_is_not_known_is_left_out(tmp_path: Path):
    folders.stage(tmp_path / "sft", "sft")
    found = read(tmp_path, base="/models/mine")
    assert found.keys() == {"library_name", "pipeline_tag", "tags"}


def test_a_whole_model_is_no_adapter(tmp_path: Path):
    folders.stage(tmp_path / "sft", "sft")
    (tmp_path / "sft/final/adapter_config.json").rename(tmp_path / "sft/final/config.json")
    found = read(tmp_path)
    assert (found["base_model_relation"], found["library_name"]) == ("finetune", "transformers")
    assert found["tags"] == ["bough", "agent", "sft"]


def test_the_index_has_this_models_success_with_its_interval(tmp_path: Path):
    folders.stage(tmp_path / "sft", "sft")
    own = str(tmp_path / "sft/final")
    folder = folders.evaluation(tmp_path / "eval", {"smollm2": "0000000000", own: "1111100000"})
    [index] = read(tmp_path, folder, title="My\nagent")["model-index"]
    assert index["name"] == "My agent"
    [result] = index["results"]
    assert result["dataset"] == {"type": "household", "name": "household, 10 tasks", "split": "unseen"}
    # Wilson's interval of 5 in 10.
    name = "success rate (95% interval 0.237 to 0.763)"
    assert result["metrics"] == [{"type": "success_rate", "name": name, "value": 0.5}]


def test_an_evaluation_of_others_only_is_no_result_of_this_model(tmp_path: Path):
    folders.stage(tmp_path / "sft", "sft")
    found = read(tmp_path, folders.evaluation(tmp_path / "eval", {"expert": "11"}, environment="my/world.py:World"))
    assert "model-index" not in found and found["tags"][-1] == "world"
