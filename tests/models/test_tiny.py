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


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


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


def test_another_process_builds_the_same_bytes(tmp_path):
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    tiny.build(folders[0])
    program = "import sys; from pathlib import Path; from bough.models import tiny; tiny.build(Path(sys.argv[1]))"
    process = Warm(None, str(folders[1]), code=program)
    process.communicate()
    assert process.wait() == 0 and hashes(folders[0]) == hashes(folders[1])
