from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from bough.models import tiny
from bough.models.resolve import load_tokenizer
from tests.warm import Warm

CHAT = [
    {"role": "system", "content": "Act."},
    {"role": "user", "content": "You open the fridge 1."},
    {"role": "assistant", "content": "ACTION: take apple 2 from fridge 1"},
]
RENDERED = (
    "<|im_start|>system\nAct.<|im_end|>\n"
    "<|im_start|>user\nYou open the fridge 1.<|im_end|>\n"
    "<|im_start|>assistant\nACTION: take apple 2 from fridge 1<|im_end|>\n"
)
# A program that asks for the tiny model; it notes each build and, told to wait, stays before the end of it.
ASK = """
import sys, time
from pathlib import Path
from bough.models import tiny

build = tiny.build

def noted(folder, family):
    build(folder, family)
    with Path(sys.argv[1]).open("a") as notes:
        notes.write("built\\n")
    print("built", flush=True)
    time.sleep(float(sys.argv[2]))

tiny.build = noted
tiny.local_folder("llama")
"""


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def ask(notes: Path, seconds: float = 0) -> Warm:
    return Warm(None, str(notes), str(seconds), code=ASK)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_each_family_loads_renders_a_chat_and_runs(cache, family):
    folder = tiny.local_folder(family)
    tokenizer = load_tokenizer(str(folder))
    model = AutoModelForCausalLM.from_pretrained(folder)

    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == RENDERED
    prompt = tokenizer.apply_chat_template(CHAT[:2], add_generation_prompt=True, return_tensors="pt")["input_ids"]
    logits = model(prompt).logits
    assert logits.shape == (1, prompt.shape[1], 1024)
    assert logits.isfinite().all() and logits.std() > 0.1

    reply = model.generate(prompt, max_new_tokens=3, do_sample=False)
    assert torch.equal(reply[:, : prompt.shape[1]], prompt)
    assert reply[0, prompt.shape[1]] == logits[0, -1].argmax()
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids(tiny.END)
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id == tokenizer.convert_tokens_to_ids(tiny.PAD)
    assert model.config.max_position_embeddings == 4096


def test_the_tokenizer_knows_the_corpus_and_loses_no_text(cache):
    tokenizer = load_tokenizer(str(tiny.local_folder("llama")))
    assert len(tokenizer) == 1024
    assert tokenizer.tokenize("You open the fridge 1") == ["You", "Ġopen", "Ġthe", "Ġfridge", "Ġ1"]
    assert tokenizer("").input_ids == []
    for text in ["  Zürich\n\n\t…東京 🦉 x  y ", tiny.CORPUS.read_text()]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    ids = tokenizer(RENDERED).input_ids
    assert ids.count(tokenizer.convert_tokens_to_ids(tiny.START)) == ids.count(tokenizer.eos_token_id) == 3


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_two_builds_give_the_same_bytes_whatever_was_drawn_before(tmp_path, family):
    folders = [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        folder.mkdir()
        tiny.build(folder, family)
    assert hashes(folders[0]) == hashes(folders[1])


def test_a_build_draws_nothing_from_the_callers_random_numbers_and_nothing_on_the_screen(tmp_path, capsys):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    tiny.build(tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert capsys.readouterr() == ("", "")


def test_a_changed_recipe_is_not_served_the_old_folder(cache, tmp_path, monkeypatch):
    before = tiny.local_folder("llama")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(tiny.CORPUS.read_text() + "One more line.\n")
    monkeypatch.setattr(tiny, "CORPUS", corpus)
    assert tiny.local_folder("llama") != before


def test_two_processes_that_ask_at_once_build_once_and_the_same_bytes_as_here(cache, tmp_path):
    asking = [ask(tmp_path / "notes") for _ in range(2)]
    for process in asking:
        process.communicate()
        assert process.wait() == 0
    assert (tmp_path / "notes").read_text() == "built\n"
    (tmp_path / "here").mkdir()
    tiny.build(tmp_path / "here")
    assert hashes(tmp_path / "here") == hashes(tiny.local_folder("llama"))


def test_a_process_killed_during_a_build_leaves_no_model_and_the_next_builds_it(cache, tmp_path):
    with ask(tmp_path / "notes", seconds=60) as process:
        assert process.stdout.readline() == "built\n"
        process.kill()
    assert not [path for path in (cache / "models").iterdir() if path.name.startswith("tiny")]
    folder = tiny.local_folder("llama")
    assert (folder / "model.safetensors").is_file()
    assert {path.name for path in (cache / "models").iterdir()} == {folder.name, f".{folder.name}.lock"}
