from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.models import tiny
from bough.models.resolve import BUILT_IN, load_tokenizer, resolve
from bough.policy.load import load_outline


def test_importing_the_package_loads_neither_torch_nor_transformers():
    program = "import sys, bough.models.resolve; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_every_tiny_family_has_a_built_in_name():
    assert set(BUILT_IN) == {"smollm2", "tiny"} | {f"tiny-{family}" for family in tiny.FAMILIES if family != "llama"}


def test_a_built_in_name_wins_over_a_folder_of_that_name(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    assert resolve("tiny") == tiny.local_folder("llama")
    assert resolve("./tiny") == Path("tiny")


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_local_folder_with_something_to_load_is_itself(tmp_path, file):
    (tmp_path / file).write_text("{}")
    assert resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("file", ["model.safetensors", "adapter_config.json", "additional_chat_templates/x.jinja"])
def test_a_pipe_or_device_in_a_models_folder_is_refused_before_anyone_waits_for_it(tmp_path, file):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "additional_chat_templates").mkdir()
    os.mkfifo(tmp_path / file) if file.endswith("json") else (tmp_path / file).symlink_to("/dev/zero")
    with pytest.raises(InputError, match=rf"{tmp_path}/{file} is not a regular file"):
        resolve(str(tmp_path))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve("~") == tmp_path


def test_a_folder_without_a_model_and_a_file_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json or adapter_config\.json or tokenizer\.json"):
        resolve(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"model\.bin is a file; name the folder"):
        resolve(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "org/name_1.5"])
def test_a_hub_id_is_left_for_transformers(name):
    assert resolve(name) == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smolm2", "did you mean smollm2?"),
        ("SmolLM2", "did you mean smollm2?"),
        ("tiny_qwen", "did you mean tiny-qwen3?"),
        ("./nope/dir", "there is no folder ./nope/dir"),
        ("/abs/missing", "there is no folder /abs/missing"),
        ("~nobody-has-this-name/model", "there is no folder ~nobody-has-this-name/model"),
        ("org/name/more", "there is no folder org/name/more"),
        ("x" * 5000, "allowed: smollm2, tiny,"),
        ("", "allowed: smollm2, tiny,"),
    ],
)
def test_a_name_that_is_nothing_is_refused_with_the_built_in_names(name, hint):
    with pytest.raises(InputError) as refused:
        resolve(name)
    assert hint in str(refused.value)


def test_the_folder_of_a_run_is_answered_with_the_folder_of_its_weights(tmp_path):
    (tmp_path / "final").mkdir()
    with pytest.raises(InputError, match=r"tokenizer_config\.json$"):
        resolve(str(tmp_path))
    (tmp_path / "final" / "adapter_config.json").touch()
    with pytest.raises(InputError, match=rf"; did you mean {tmp_path}/final\?$"):
        resolve(str(tmp_path))


def test_a_hub_id_that_is_not_cached_is_a_sentence_when_offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="no such folder here, it is not in the local hub cache and the hub cannot"):
        load_tokenizer("no-such-org/no-such-model")


def test_a_hub_that_cannot_be_reached_is_tried_once(monkeypatch):
    asked = []

    class Session:
        def head(self, url, timeout):
            asked.append(url)
            raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr("huggingface_hub.get_session", Session)
    for load in (load_tokenizer, load_outline, load_tokenizer):
        with pytest.raises(InputError, match=r"not in the local hub cache and the hub \(http://hub\.invalid\)"):
            load("no-such-org/no-such-model")
    assert asked == ["http://hub.invalid"]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", '{"model_type": "llama"}', r"its folder contains no tokenizer\.json"),
        ("tokenizer.json", '{"model_', "Unterminated string"),
    ],
)
def test_a_folder_without_a_tokenizer_or_with_a_broken_one_is_a_sentence(tmp_path, file, content, said):
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=rf"the tokenizer of .* cannot be loaded: {said}"):
        load_tokenizer(str(tmp_path))


def test_code_that_comes_with_a_model_is_refused_and_not_asked_about(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Tokenizer", null]}}')
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')")
    with pytest.raises(InputError, match="contains custom code"):
        load_tokenizer(str(tmp_path))


def test_a_folder_that_is_missing_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("models/final") == "models/final", "a hub id, as far as one can tell"
    (tmp_path / "models").mkdir()
    for name in ("models/final", "runs/final", "runs/sft/final", "./final"):
        with pytest.raises(InputError, match=f"there is no folder {name}"):
            resolve(name)
