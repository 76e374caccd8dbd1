"""A program: `python -m bough.models.convert GGUF FOLDER` turns SmolLM2's GGUF file into a plain model folder.

It is a program of its own so that a gigabyte of memory and transformers' progress bars end with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bough.models import scikit_learn


def convert(gguf: Path, folder: Path) -> None:
    """Save the model (float32 safetensors) and its tokenizer, chat template included, into `folder`."""
    scikit_learn.import_later()
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        local_files_only=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    # The file names its pre-tokenizer "smollm": digits one by one, then GPT-2's rule. transformers
    # reads it as GPT-2's rule alone, which splits white space before a number otherwise than in training.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    # Some versions of transformers confuse the first token with the last, or leave out the padding.
    names = tokenizer.convert_ids_to_tokens
    tokenizer.bos_token, tokenizer.eos_token = names(model.config.bos_token_id), names(model.config.eos_token_id)
    tokenizer.pad_token = names(model.config.pad_token_id)
    tokenizer.model_max_length = model.config.max_position_embeddings
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is gone: who asked for it was killed, and the next to ask swept it away")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
