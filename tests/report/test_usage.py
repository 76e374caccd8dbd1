import ast
import json
from pathlib import Path
from typing import Any

import pytest

from bough.data.writer import Writer
from bough.evaluation.contest import folder_name
from bough.report.evaluated import Subject, find_subject
from bough.report.lineage import base_model
from bough.report.usage import example, program, usage
from bough.types import Message, Task, Trajectory, Turn
from tests.report import folders

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


def test_without_an_evaluation_the_prompt_comes_from_the_data(tmp_path: Path):
    with Writer(tmp_path / "data.jsonl") as writer:
        writer.write(trajectory("a", success=True, user="From the data."))
    folders.stage(tmp_path / "runs/sft", "sft", train_file=str(tmp_path / "data.jsonl"))
    code = program(find_subject(tmp_path / "runs/sft", []), BASE, None)
    assert messages_of(code)[1]["content"] == "From the data. [a, b]"


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
    ],
)
def test_it_answers_as_it_was_evaluated(tmp_path: Path, settings: dict[str, Any], shown: str):
    lines = shown.replace(", ", ",\n    ")
    assert f"    **prompt,\n    {lines},\n    eos_token_id=" in program(subject(tmp_path, **settings), BASE, None)


def test_names_are_those_of_the_hub_where_there_are_any(tmp_path: Path):
    found = subject(tmp_path)
    code = program(found, BASE, "org/name")
    assert 'base = "HuggingFaceTB/SmolLM2-135M-Instruct"\nadapter = "org/name"\n' in code
    code = program(found, base_model("/home/ann/models/mine"), None)
    assert 'base = "path/to/base"  # mine\nadapter = "."' in code and "ann" not in code


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
