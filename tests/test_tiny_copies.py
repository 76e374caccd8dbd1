"""A copy of a tiny model is what the disk has, and nobody else's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bough.models.resolve import resolve
from tests.tiny_copies import FOLDER, read_once

MODEL = FOLDER / "tiny-a"


class Disk:
    """Counts how often it is read."""

    def __init__(self, content: Callable[..., Any]) -> None:
        self.content, self.times = content, 0

    def __call__(self, *words: Any, **options: Any) -> Any:
        self.times += 1
        return self.content(*words, **options)


@pytest.fixture
def disk() -> Disk:
    return Disk(lambda *_, **__: torch.nn.Linear(2, 2))


def test_a_copied_model_has_the_weights_and_settings_of_the_one_on_the_disk():
    source = resolve("tiny")
    disk = Disk(lambda folder: AutoModelForCausalLM.from_pretrained(str(folder)))
    load = read_once(disk)
    _, copied, read = load(source), load(source), disk(source)
    assert disk.times == 2
    assert copied.config.to_dict() == read.config.to_dict()
    weights = read.state_dict()
    assert copied.state_dict().keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in copied.state_dict().items())
    assert copied.lm_head.weight is copied.model.embed_tokens.weight  # tied, as they were


def test_a_copied_tokenizer_writes_the_same_ids():
    source = resolve("tiny")
    disk = Disk(lambda folder: AutoTokenizer.from_pretrained(str(folder)))
    load = read_once(disk)
    _, copied, read = load(source), load(source), disk(source)
    assert disk.times == 2
    text = "<|im_start|>user\nGo to the desk.<|im_end|>\n"
    assert copied(text)["input_ids"] == read(text)["input_ids"]
    assert copied.chat_template == read.chat_template and copied.name_or_path == read.name_or_path


def test_what_is_done_to_one_copy_is_not_seen_in_the_next(disk: Disk):
    load = read_once(disk)
    first, second = load(MODEL), load(MODEL)
    kept = second.weight.clone()
    torch.nn.init.zeros_(first.weight)
    torch.nn.init.zeros_(second.bias)
    assert disk.times == 1
    assert torch.equal(load(MODEL).weight, kept) and load(MODEL).bias.any()


def test_other_options_are_another_reading(disk: Disk):
    load = read_once(disk)
    config = AutoConfig.from_pretrained(resolve("tiny"))
    load(MODEL, config=config, dtype=torch.float32)
    load(MODEL, config=AutoConfig.from_pretrained(resolve("tiny")), dtype=torch.float32)
    assert disk.times == 1
    load(MODEL, config=config, dtype=torch.bfloat16)
    config.attention_dropout = 0.5
    load(MODEL, config=config, dtype=torch.float32)
    load(FOLDER / "tiny-b", config=config, dtype=torch.float32)
    assert disk.times == 4


@pytest.mark.parametrize(
    "source", [FOLDER / "smollm2-a", FOLDER / "a" / "tiny-a", Path("tiny-a"), "org/tiny-a"], ids=str
)
def test_other_folders_are_read_each_time(disk: Disk, source: Path | str):
    load = read_once(disk)
    load(source), load(source)
    assert disk.times == 2


def test_a_model_that_is_read_in_inference_mode_is_not_given_to_others(disk: Disk):
    load = read_once(disk)
    with torch.inference_mode():
        load(MODEL)
    assert not load(MODEL).weight.is_inference() and disk.times == 2
