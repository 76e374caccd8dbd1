from __future__ import annotations

import json

from bough.models.resolve import load_tokenizer


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


def test_the_chat_template_came_along(smollm2_folder):
    tokenizer = load_tokenizer("smollm2")
    chat = [{"role": "system", "content": "Act."}, {"role": "user", "content": "Hi."}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nAct.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_digits_stand_alone_and_leave_the_space_before_them_whole(smollm2_folder):
    tokenizer = load_tokenizer("smollm2")
    assert tokenizer.tokenize("x  12") == ["x", "ĠĠ", "1", "2"]
    assert tokenizer.tokenize("x  y") == ["x", "Ġ", "Ġy"]
    text = "In 1984 there were\n   42 owls, café 🦉."
    assert tokenizer.decode(tokenizer(text).input_ids) == text
