"""Models of a few hundred kilobytes with random weights: all of the machinery of a real one, none of the wait.

The tokenizer is a real byte-level BPE trained on `tiny_corpus.txt`, with a ChatML template. A
build gives the same bytes each time, so tests may compare what two processes or machines do.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from functools import partial
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.files import build_once
from bough.terminal.console import no_bars

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

# The module of transformers that uses a function, the function, its package, and what asks whether that is installed.
TOKENIZERS = ("transformers.generation.candidate_generator", "roc_curve", "sklearn.metrics", "is_sklearn_available")
MODELS = (
    "transformers.loss.loss_for_object_detection",
    "linear_sum_assignment",
    "scipy.optimize",
    "is_scipy_available",
)


def postpone_scikit_learn(*, models: bool = False) -> None:
    """Call this before the first import of a tokenizer, or of a model; later calls change nothing."""
    for later in (TOKENIZERS, MODELS) if models else (TOKENIZERS,):
        if later[0] not in sys.modules:
            _replace(*later)


def _replace(module: str, function: str, package: str, asks: str) -> None:
    from transformers import utils

    available = getattr(utils, asks)
    setattr(utils, asks, lambda: False)
    try:
        user = importlib.import_module(module)
    except ModuleNotFoundError:  # a version of transformers without it
        return
    finally:
        setattr(utils, asks, available)

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(package), function)(*arguments, **options)

    setattr(user, asks, available)
    setattr(user, function, call)


CORPUS = Path(__file__).with_name("tiny_corpus.txt")
VOCABULARY_SIZE = 1024
CONTEXT = 4096
PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}
# A family is the name of its configuration class and the settings of a small one. Gemma's window
# is short and in one layer of two, so that tests of modest length meet both kinds of attention;
# GPT-2 drops nothing out, so that training it is as repeatable as training the others.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SHAPE),
    "qwen3": ("Qwen3Config", SHAPE),
    "gemma": (
        "Gemma3TextConfig",
        SHAPE
        | {
            "query_pre_attn_scalar": 16,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
        | dict.fromkeys(["attn_pdrop", "embd_pdrop", "resid_pdrop"], 0.0),
    ),
}


def local_folder(family: str) -> Path:
    """Where the tiny model of `family` lies, built on first use."""
    recipe = hashlib.sha256(Path(__file__).read_bytes() + CORPUS.read_bytes())
    for package in ("transformers", "tokenizers"):
        recipe.update(version(package).encode())
    return build_once(f"models/tiny-{family}-{recipe.hexdigest()[:8]}", partial(build, family=family))


def build(folder: Path, family: str = "llama") -> None:
    """Save the model and the tokenizer into `folder`."""
    tokenizer = _tokenizer()
    model = _model(_config(family, tokenizer))
    with no_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    postpone_scikit_learn()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS.read_text(encoding="utf-8").splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )


def _config(family: str, tokenizer: PreTrainedTokenizerFast) -> PretrainedConfig:
    postpone_scikit_learn()
    import transformers

    name, settings = FAMILIES[family]
    return getattr(transformers, name)(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **settings,
    )


def _model(config: PretrainedConfig) -> PreTrainedModel:
    """The model of `config` with every matrix drawn again from one seed."""
    postpone_scikit_learn()
    import torch
    from transformers import AutoModelForCausalLM

    # The constructor draws weights too: a run must not depend on whether this model was cached.
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for _, weight in sorted(model.named_parameters(), key=itemgetter(0)):
        if weight.dim() > 1:
            # Uniform draws need no transcendental function, so their bits are the same on every CPU.
            weight.data = (torch.rand(weight.shape, generator=generator) - 0.5) * 0.4
    return model
