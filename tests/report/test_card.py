import ast
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from bough.data.writer import Writer
from bough.errors import InputError
from bough.evaluation.contest import folder_name
from bough.report import card as sections
from bough.report.card import (
    Card,
    CardConfig,
    example,
    front_matter,
    make_card,
    program,
    usage,
    write_card,
)
from bough.report.evaluated import Subject, find_subject, measured
from bough.report.lineage import Lineage, base_model, lineage
from bough.types import Message, Task, Trajectory, Turn
from tests.report import folders

HOSTILE = "</code><script>alert(1)</script> | ``` \n---\n# Owned ![x](http://evil.example/x.png)"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A recipe's run with a hostile word in every place that models, worlds and data files can write to."""
    stages: list[dict[str, Any]] = [{"collect": {}}, {"pairs": {}}, {"sft": {}}, {"dpo": {}}, {"eval": {}}]
    run = folders.recipe(tmp_path / "runs/made", *stages, about=HOSTILE, name="made")
    for folder in ("01-collect", "03-sft", "04-dpo"):
        (run / folder / "stage.json").rename(run / f"{folder}.json")
        (run / folder).rmdir()
    played = folders.collection(run / "01-collect", environment=f"{tmp_path}/world.py:World")
    (played / "report.json").write_text((played / "report.json").read_text().replace("max_turns", "<b>|x"))
    file = folders.pairs(run / "02-pairs/pairs.jsonl", [played], {"loop": 3, HOSTILE: 2})
    folders.stage(run / "03-sft", "sft", train_file=tmp_path / "demos.jsonl")
    folders.stage(run / "04-dpo", "dpo", model=str(run / "03-sft/final"), train_file=file)
    for folder in ("01-collect", "03-sft", "04-dpo"):
        (run / f"{folder}.json").rename(run / folder / "stage.json")
    weights = str(run / "04-dpo/final")
    folders.evaluation(run / "05-eval", {"smollm2": "0011", weights: "1111", HOSTILE: "0000"}, environment="household")
    place = run / "05-eval/models" / folder_name(weights)
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(f"command: collect\nmodel: {weights}\n")
    said = Message(role="user", content=f"{HOSTILE} {Path.home()}/secret {tmp_path}/secret")
    turn = Turn(reply=Message(role="assistant", content=HOSTILE), observation=[said])
    with Writer(place / "trajectories.jsonl") as writer:
        writer.write(Trajectory(id="a", task=Task(id="a"), start=[said], turns=[turn], success=True))
    return run


def card(run: Path, **settings: Any) -> Card:
    return make_card(CardConfig(run=run, **settings))


def test_it_loads_with_the_hubs_own_reader(run: Path):
    made = card(run, license="apache-2.0", repo="org/name")
    loaded = ModelCard(made.text)
    assert loaded.data.base_model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (loaded.data.library_name, loaded.data.license) == ("peft", "apache-2.0")
    [result] = loaded.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_type) == ("success_rate", 1.0, "household")
    assert loaded.data.model_name == "name" and loaded.text.startswith("\n# name\n")
    assert made.path == run / "04-dpo/final/README.md"
    assert "\n# My agent\n" in card(run, repo="org/name", name="My agent").text


def test_its_sections_stand_in_order_and_nothing_adds_one(run: Path):
    tokens = MarkdownIt("commonmark").enable("table").parse(ModelCard(card(run).text).text)
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings == [
        "made", "Training objective", "Training pipeline", "Data", "Hyper-parameters", "Evaluation", "household",
        "Usage", "Sources and terms",
    ]  # fmt: skip


def test_what_others_wrote_is_shown_and_never_obeyed(run: Path):
    text = ModelCard(card(run).text).text
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script" not in html and "<b>" not in html and "<img" not in html
    assert re.findall(r'href="([^"]*)"', html) == [
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    ]
    assert html.count("&lt;script&gt;") >= 5


def test_no_folder_of_this_machine_is_named_from_wherever_it_is_made(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = card(run).text
    assert str(tmp_path) not in whole and str(Path.home()) not in whole and "…/secret" in whole
    for place in (tmp_path, run.parent, run, Path("/")):
        monkeypatch.chdir(place)
        assert card(run).text == card(Path(os.path.relpath(run))).text == whole


def test_what_its_reader_will_miss_is_noted(run: Path, tmp_path: Path):
    assert card(run, license="mit", repo="org/name").missing == ()
    folders.stage(tmp_path / "alone", "sft", model="/models/mine")
    notes = card(tmp_path / "alone").missing
    assert [word for word in ("--base-model", "--license", "--repo", "--evaluations") if word in " ".join(notes)] == [
        "--base-model", "--license", "--repo", "--evaluations",
    ]  # fmt: skip
    assert card(tmp_path / "alone", base_model="org/base").missing == notes[1:]


def test_sources_and_licences_are_listed(run: Path):
    text = card(run, license="mit", datasets=["org/data"]).text
    assert "| base model | HuggingFaceTB/SmolLM2-135M-Instruct | apache-2.0 |" in text
    assert "| data | org/data | see its page |\n| data | demos.jsonl | – |\n| data | pairs.jsonl | – |" in text
    assert "| this model | made | mit |" in text and "PEFT 0.21.0 | MIT |" in text
    assert "| this model | made | not stated |" in card(run).text


@pytest.mark.parametrize("linked", ["04-dpo", "04-dpo/final"])
def test_it_is_not_written_through_a_link_inside_the_run(linked: str, run: Path, tmp_path: Path):
    (run / linked).rename(tmp_path / "elsewhere")
    (run / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{linked} is a symbolic link"):
        write_card(CardConfig(run=run, overwrite=True))
    assert not list((tmp_path / "elsewhere").rglob("README.md"))
    assert write_card(CardConfig(run=run, output=tmp_path / "card.md")).path.exists()
    with pytest.raises(InputError, match="is a folder"):
        write_card(CardConfig(run=run, output=tmp_path))


def test_the_example_is_a_card_and_names_no_folder_of_anybodys():
    card = ModelCard.load(Path(__file__).parents[2] / "docs/example-card.md")
    assert card.data.library_name == "peft" and card.data.eval_results
    assert not re.search(r"/(home|root|tmp|Users|work|mnt|var)/", card.content)


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
    again = folders.evaluation(tmp_path / "again", {own: "11"}, seed=1)
    [index] = read(tmp_path, folder, again, title="My\nagent")["model-index"]
    assert index["name"] == "My agent"
    [result, other] = index["results"]
    assert other["dataset"]["name"] == "household, 2 tasks"
    config = "evaluation 1, seed 0"
    assert result["dataset"] == {
        "type": "household", "name": "household, 10 tasks", "config": config, "split": "unseen",
    }  # fmt: skip
    # Wilson's interval of 5 in 10.
    name = "success rate (95% interval 0.237 to 0.763)"
    assert result["metrics"] == [{"type": "success_rate", "name": name, "value": 0.5}]


def test_an_evaluation_of_others_only_is_no_result_of_this_model(tmp_path: Path):
    folders.stage(tmp_path / "sft", "sft")
    found = read(tmp_path, folders.evaluation(tmp_path / "eval", {"expert": "11"}, environment="my/world.py:World"))
    assert "model-index" not in found and found["tags"][-1] == "world"


BASE = base_model("smollm2")
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "required": [], "x": True}}}


def trajectory(id: str, *, success: bool, user: str = "Go.", tools: Any = ()) -> Trajectory:
    start = [Message(role="system", content="Rules\nand more."), Message(role="user", content=user, hint=" [a, b]")]
    turn = Turn(
        reply=Message(role="assistant", content="ACTION: a"), observation=[Message(role="user", content="Done.")]
    )
    return Trajectory(id=id, task=Task(id=id), start=start, turns=[turn], tools=list(tools), success=success)


def subject(tmp_path: Path, *played: Trajectory, name: str | None = None, **settings: Any) -> Subject:
    folders.stage(tmp_path / "sft", "sft", lora_r=24)
    weights = name or str(tmp_path / "sft/final")
    folder = folders.evaluation(tmp_path / "eval", {weights: "1"})
    file = folder / "results.json"
    file.write_text(file.read_text().replace('"settings": {}', f'"settings": {json.dumps(settings)}'))
    place = folder / "models" / folder_name(weights)
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(f"command: collect\nmodel: {weights}\n")
    with Writer(place / "trajectories.jsonl") as writer:
        for one in played:
            writer.write(one)
    return find_subject(tmp_path / "sft", [folder])


def value_of(name: str, code: str) -> Any:
    """What the program sets `name` to."""
    assignments = [node for node in ast.parse(code).body if isinstance(node, ast.Assign)]
    [value] = [node.value for node in assignments if ast.unparse(node.targets[0]) == name]
    return ast.literal_eval(value)


def messages_of(code: str) -> Any:
    return value_of("messages", code)


def test_the_prompt_is_the_one_the_model_was_given(tmp_path: Path):
    found = subject(tmp_path, trajectory("a", success=False), trajectory("b", success=True, user='It\'s\n"so".'))
    assert example(found).id == "b"  # type: ignore[union-attr]
    assert messages_of(program(found, BASE, "org/name")) == [
        {"role": "system", "content": "Rules\nand more."},
        {"role": "user", "content": 'It\'s\n"so". [a, b]'},
    ]


@pytest.mark.parametrize("said", ['a "b"', "it's", 'it\'s "so"', "back\\slash\\", "", "\u202e\x1b", '"""'])
def test_any_text_stays_what_it_is_in_the_code(tmp_path: Path, said: str):
    found = subject(tmp_path, trajectory("a", success=True, user=said))
    assert messages_of(program(found, BASE, None))[1]["content"] == f"{said} [a, b]"


def test_another_models_episodes_are_not_this_ones(tmp_path: Path):
    found = subject(tmp_path, trajectory("a", success=True), name="expert")
    assert example(found) is None
    assert messages_of(program(found, BASE, None))[0]["content"].startswith("An observation of the environment")


def test_a_template_without_tools_is_shown_them_as_the_model_was(tmp_path: Path):
    code = program(subject(tmp_path, trajectory("a", success=True, tools=[TOOL])), BASE, None)
    assert "<tools>" in messages_of(code)[0]["content"] and "tools=tools" not in code


def test_a_template_with_tools_is_handed_them(tmp_path: Path):
    found = subject(tmp_path, trajectory("a", success=True, tools=[TOOL]))
    jinja = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}"
    jinja += "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}<|im_end|>{% endfor %}"
    (found.weights / "chat_template.jinja").write_text(jinja)
    code = program(found, BASE, None)
    assert "messages, tools=tools, add_generation_prompt=True" in code
    assert value_of("tools", code) == [TOOL]


def test_a_prompt_that_is_too_long_for_a_card_is_left_out(tmp_path: Path):
    code = program(subject(tmp_path, trajectory("a", success=True, user="x" * 6001)), BASE, None)
    assert "xxx" not in code


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"max_new_tokens": 48, "temperature": 0.0}, "max_new_tokens=48, do_sample=False"),
        ({"max_new_tokens": 48, "temperature": 0.7}, "max_new_tokens=48, do_sample=True, temperature=0.7"),
        ({}, "max_new_tokens=256, do_sample=False"),
        ({"max_new_tokens": "1)\nimport os"}, "max_new_tokens=256, do_sample=False"),
        ({"max_new_tokens": 48, "temperature": "1)\nimport os"}, "max_new_tokens=256, do_sample=False"),
    ],
)
def test_it_answers_as_it_was_evaluated(tmp_path: Path, settings: dict[str, Any], shown: str):
    lines = shown.replace(", ", ",\n    ")
    assert f"    **prompt,\n    {lines},\n    eos_token_id=" in program(subject(tmp_path, **settings), BASE, None)


def test_names_are_those_of_the_hub_where_there_are_any(tmp_path: Path):
    found = subject(tmp_path)
    code = program(found, BASE, "org/name")
    assert 'base = "HuggingFaceTB/SmolLM2-135M-Instruct"\nadapter = "org/name"\n' in code
    code = program(found, base_model("/home/ann/models/mine\nimport os"), None)
    assert 'base = "path/to/base"  # mine import os\nadapter = "."' in code and "ann" not in code


def test_vllm_is_told_a_rank_that_it_takes(tmp_path: Path):
    shown = "\n".join(usage(subject(tmp_path), BASE, "org/name"))
    assert "--max-lora-rank 32 --lora-modules agent=org/name" in shown
    assert "vllm" not in "\n".join(usage(find_subject(tmp_path / "sft", []), base_model("mine"), None))


def test_a_model_with_all_its_weights_needs_no_peft(tmp_path: Path):
    found = subject(tmp_path)
    (found.weights / "adapter_config.json").rename(found.weights / "config.json")
    (found.weights / "config.json").write_text('{"model_type": "llama"}')
    code = program(found, BASE, "org/name")
    assert 'name = "org/name"' in code and "peft" not in code


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
    assert sections.pipeline(base_model("smollm2"), found) == (
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


def test_a_world_with_its_options_and_a_start_adapter_are_named(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    given: dict[str, Any] = {"max_steps": 3, "options": {"games": "/home/ann/games", "types": ["a"]}, "watch": False}
    folders.stage(tmp_path / "grpo", "grpo", model=str(tmp_path / "mine"), environment="a/b.py:World", **given)
    found = lineage(tmp_path / "grpo")
    drawing = sections.pipeline(base_model("org/base"), found)
    assert "org/base\n│   start adapter: mine\n" in drawing and "environment: b.py:World" in drawing
    text = sections.settings(found.stages)
    assert '| `options` | `{"games": "games", "types": ["a"]}` |' in text and "| `watch` | no |" in text


def test_the_data_is_accounted_for_with_its_reasons_and_episodes(found: Lineage):
    text = "\n\n".join(sections.data(found))
    for row in (
        "| sft | rows | 7 | 5 | 2 `too_long` |",
        "| dpo | mistakes | 50 | 30 | 20 `nobody_knows_better` |",
        "| dpo | rows | 30 | 28 | 2 `too_long` |",
        "| `loop` | 20 |",
        "| `weird<b>` | 10 |",
    ):
        assert row in text


def test_settings_are_those_that_matter_and_those_that_were_changed(found: Lineage):
    text = sections.settings(found.stages)
    assert text.startswith("| setting | sft | dpo |\n| --- | --- | --- |\n| steps | 12 | 12 |\n")
    assert "| `learning_rate` | 0.0002 | 5e-05 |" in text
    assert "| `beta` | – | 0.25 |" in text
    assert "| `nll_alpha` | – | 0.5 |" in text
    assert "| `lora_target_modules` | all-linear | all-linear |" in text
    for hidden in ("label_smoothing", "token_budget", "output_dir", "train_file", "model"):
        assert f"`{hidden}`" not in text
