"""The usage section of a card: runnable code with a prompt from a recorded episode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from pprint import pformat
from typing import Any

from bough.chat.template import ChatTemplate, Spoken, load_template, with_hint
from bough.data.base import Sample
from bough.data.reader import Reader
from bough.errors import InputError
from bough.evaluation.contest import folder_name
from bough.evaluation.results import ModelResult
from bough.report.evaluated import Evaluation, Subject, model_of
from bough.report.lineage import BaseModel, Data, fenced
from bough.types import Group, Trajectory

MOST_CHARACTERS = 6000
IMPORTS = "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
ADAPTER = """\
from peft import PeftModel
{imports}
base = {base}
adapter = {place}

tokenizer = AutoTokenizer.from_pretrained(adapter)
model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", device_map="auto")
model = PeftModel.from_pretrained(model, adapter)
"""
WHOLE = """\
{imports}
name = {place}

tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype="auto", device_map="auto")
"""
ANSWER = """
prompt = tokenizer.apply_chat_template(
    messages,{tools} add_generation_prompt=True, return_tensors="pt", return_dict=True
).to(model.device)
reply = model.generate(
    **prompt,
    {sampling},
    eos_token_id=tokenizer.convert_tokens_to_ids({end}),
    pad_token_id={pad},
)
print(tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def usage(subject: Subject, base: BaseModel, repo: str | None) -> Iterator[str]:
    """The paragraphs: transformers and peft first, then other ways to serve the model."""
    yield fenced(program(subject, base, repo), "python")
    place = repo or "path/to/this/folder"
    if subject.is_adapter and base.hub_id:
        used = subject.lineage.last.settings.get("lora_r", 16)
        # vLLM accepts certain ranks only.
        ranks = (8, 16, 32, 64, 128, 256, 320)
        rank = next((size for size in ranks if isinstance(used, int) and used <= size), 512)
        yield "With vLLM, or merged into the base model for other engines:"
        yield fenced(
            f"vllm serve {base.hub_id} --enable-lora --max-lora-rank {rank} --lora-modules agent={place}\n"
            f"bough merge path/to/this/folder -o merged",
            "sh",
        )


def program(subject: Subject, base: BaseModel, repo: str | None) -> str:
    """The code block."""
    template = load_template(str(subject.weights))
    place = json.dumps(repo) if repo else '"."  # the folder of this file'
    name = json.dumps(base.hub_id) if base.hub_id else f'"path/to/base"  # {base.name}'
    head = (ADAPTER if subject.is_adapter else WHOLE).format(imports=IMPORTS, base=name, place=place)
    messages, tools = _conversation(subject, template)
    pad = template.tokenizer.pad_token_id
    answer = ANSWER.format(
        tools=" tools=tools," if tools else "",
        sampling=_sampling(subject).replace(", ", ",\n    "),
        end=json.dumps(template.end_of_turn),
        pad=json.dumps(template.end_of_turn_id if pad is None else pad),
    )
    shown = f"messages = {pformat(messages, width=110, sort_dicts=False)}\n"
    if tools:
        shown += f"tools = {pformat(tools, width=110, sort_dicts=False)}\n"
    return f"{head}\n{shown}{answer}".rstrip()


def example(subject: Subject) -> Trajectory | None:
    """An episode that this model played, the first that it solved if there is one."""
    first: Trajectory | None = None
    for evaluation, model in _own(subject):
        for record in _records(evaluation.folder / "models" / folder_name(model.name) / "trajectories.jsonl"):
            if isinstance(record, Trajectory):
                if record.success:
                    return record
                first = first or record
    return first


def _conversation(subject: Subject, template: ChatTemplate) -> tuple[list[Spoken], list[dict[str, Any]] | None]:
    """The first messages of an episode that the model played, or of one that it was trained on."""
    episode: Sample | None = example(subject)
    files = (file for stage in reversed(subject.lineage.stages) for file in _files(stage.data))
    episode = episode or next((record for file in files for record in _records(file)), None)
    if isinstance(episode, Group):
        episode = episode.attempts[0]
    if episode is not None:
        messages, tools = template.speak(with_hint(episode.start), list(episode.tools))
        if len(json.dumps([messages, tools])) <= MOST_CHARACTERS:
            return messages, tools
    return [{"role": "user", "content": "An observation of the environment."}], None


def _sampling(subject: Subject) -> str:
    for _, model in _own(subject):
        if "max_new_tokens" in model.settings:
            tokens, temperature = model.settings["max_new_tokens"], model.settings.get("temperature")
            how = f"do_sample=True, temperature={temperature}" if temperature else "do_sample=False"
            return f"max_new_tokens={tokens}, {how}"
    return "max_new_tokens=256, do_sample=False"


def _own(subject: Subject) -> Iterator[tuple[Evaluation, ModelResult]]:
    """The evaluations of these weights."""
    for evaluation in subject.evaluations:
        for model in evaluation.results.models:
            weights = model_of(model, evaluation)
            if weights is not None and weights.resolve() == subject.weights.resolve():
                yield evaluation, model


def _files(data: Data | None) -> Iterator[Path]:
    if data is not None and data.path is not None:
        inside = data.path / "trajectories.jsonl"
        yield inside if inside.is_file() else data.path
        for source in data.sources:
            yield from _files(source)


def _records(file: Path) -> Iterator[Sample]:
    try:
        yield from Reader(file, on_error="skip")
    except InputError:  # a card can do without an example
        return
